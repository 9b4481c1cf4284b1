/* SPDX-License-Identifier: Apache-2.0
 * Reads JSON (RFC 8259) as it arrives and keeps none of it: memory is constant, whatever the text
 * is made of. For texts of clients and servers, whose length and shape are not ours. A caller
 * follows the values that it wants by their depth and their keys, or by where they stand. Whether
 * strings are UTF-8 is not looked at. */
#ifndef KVP_CONDUCTOR_BASE_JSONSCAN_H
#define KVP_CONDUCTOR_BASE_JSONSCAN_H

#include "common/base.h"

#define KVP_JSONSCAN_DEPTH_MAX 64u
#define KVP_JSONSCAN_KEYS 4u /* levels, from the outermost on, of which the keys are kept */
#define KVP_JSONSCAN_KEY_MAX 31u /* bytes of a key; a longer one is kept as "" */
#define KVP_JSONSCAN_TEXT_MAX 511u /* bytes of a value; a longer string is_cut, and a longer number is an error */

typedef enum { KVP_JSON_BEGIN, KVP_JSON_END, KVP_JSON_STRING, KVP_JSON_WORD, KVP_JSON_KEY } kvp_json_event_t;

typedef struct kvp_jsonscan kvp_jsonscan_t;
/* kvp_jsonscan_fn is called for each key and each value, and at the beginning and the end of each
 * container, with the depth outside of it. Its return value false ends the scan. */
typedef bool (*kvp_jsonscan_fn)(void *arg, const kvp_jsonscan_t *s, kvp_json_event_t event);

struct kvp_jsonscan {
    uint32_t depth; /* open containers around the value */
    char keys[KVP_JSONSCAN_KEYS][KVP_JSONSCAN_KEY_MAX + 1]; /* the current key of each of them; "" in an array */
    char text[KVP_JSONSCAN_TEXT_MAX +
              1]; /* of the value: a number or literal, or a string as it stands between its quotes */
    uint32_t text_len; /* at KVP_JSON_BEGIN: 1 = it is an object */
    bool is_cut, has_escape; /* the string: is longer than text; has a backslash */
    size_t begin,
        /* where the key or the value stands in all that was fed; at KVP_JSON_BEGIN begin alone, at
         * KVP_JSON_END end alone */
        end;

    kvp_jsonscan_fn on;
    void *arg;
    size_t at; /* consumed bytes */
    uint64_t objects; /* a bit for each level: it is an object */
    uint8_t state, mode, hex; /* hex: digits of an escape that are still to come */
};

void kvp_jsonscan_init(kvp_jsonscan_t *s, kvp_jsonscan_fn on, void *arg);
/* kvp_jsonscan_feed takes the next bytes. False: the text is no JSON with an object outside, it is
 * too deep, or `on` returned false. */
bool kvp_jsonscan_feed(kvp_jsonscan_t *s, const char *bytes, size_t len);
bool kvp_jsonscan_is_whole(const kvp_jsonscan_t *s); /* the outermost object has ended */

/* kvp_jsonscan_is_at: the value stands under these keys, from the outermost on; "" = in an array. */
bool kvp_jsonscan_is_at(const kvp_jsonscan_t *s, const char *const *keys, uint32_t n);

#endif
