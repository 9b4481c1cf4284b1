/* SPDX-License-Identifier: Apache-2.0
 * A miss-ratio curve: which share of the asked keys an LRU cache of each size would have had.
 *
 * The method is SHARDS with a fixed number of samples (Waldspurger et al., FAST 2015): only keys whose hash lies below
 * a threshold are tracked, and the distance of a use is the bytes of tracked keys used since the key's last use,
 * divided by the sampling rate. Two changes: keys that are asked for most are tracked whatever their hash, with weight
 * 1, because one system prompt in or out of a sample would decide the answer; and in a look-up of a prefix the
 * distance of a key is the largest so far, because a prefix ends at its first missing key. */
#ifndef KVP_MASTER_CORE_BASE_CURVE_H
#define KVP_MASTER_CORE_BASE_CURVE_H

#include "common/hash.h"

#define KVP_CURVE_SAMPLES 16384u /* most keys that are tracked by their hash */
#define KVP_CURVE_HOT 256u /* most keys that are tracked because they have the most uses */

typedef struct kvp_curve kvp_curve_t;

/* kvp_curve_create returns an empty curve of about 1.5 MB. tracked_max limits the uses that are tracked in a second,
 * and so the processor time; 0 = no limit. Above the limit the curve samples fewer keys. */
kvp_curve_t *kvp_curve_create(uint64_t tracked_max);
void kvp_curve_destroy(kvp_curve_t *curve);

/* kvp_curve_ask counts a look-up of n keys, at most KVP_BATCH_MAX. is_prefix: the look-up ends at the first missing
 * key. kvp_curve_read counts reads that follow another use of the same key at once. kvp_curve_put sets the size of a
 * key's object, and does not count as a use; a key without a size counts with the mean size. Call kvp_curve_tick at
 * least once a second: it keeps the limit of tracked uses, and fades old uses. A use counts half after six hours. */
void kvp_curve_ask(kvp_curve_t *curve, const kvp_digest_t *digests, uint32_t n, bool is_prefix);
void kvp_curve_read(kvp_curve_t *curve, uint32_t reads);
void kvp_curve_put(kvp_curve_t *curve, kvp_digest_t digest, uint64_t bytes);
void kvp_curve_tick(kvp_curve_t *curve, uint64_t now_ns);

/* kvp_curve_hits returns the estimated hit ratio of an LRU cache of so many bytes. kvp_curve_asked returns the number
 * of asked keys after fading, kvp_curve_samples the number of tracked keys. */
double kvp_curve_hits(const kvp_curve_t *curve, uint64_t bytes);
double kvp_curve_asked(const kvp_curve_t *curve);
uint32_t kvp_curve_samples(const kvp_curve_t *curve);

#endif
