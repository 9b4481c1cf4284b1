/* SPDX-License-Identifier: Apache-2.0
 * A streaming scanner of JSON (RFC 8259). Its memory is constant: it keeps only the current key and value. It is
 * for the untrusted bodies of clients and servers, which have any length and shape. A caller picks values by their
 * depth and keys, or by their position in the text. The scanner does not check that strings are UTF-8. */
#ifndef KVP_CONDUCTOR_BASE_JSONSCAN_H
#define KVP_CONDUCTOR_BASE_JSONSCAN_H

#include "common/base.h"

#define KVP_JSONSCAN_DEPTH_MAX 64u
#define KVP_JSONSCAN_KEYS 4u /* number of levels whose current keys the scanner keeps, from the root object on */
#define KVP_JSONSCAN_KEY_MAX 31u /* longest kept key in bytes; a longer key is kept as "" */
/* longest kept value in bytes; a longer string is cut, a longer number is an error */
#define KVP_JSONSCAN_TEXT_MAX 511u

typedef enum { KVP_JSON_BEGIN, KVP_JSON_END, KVP_JSON_STRING, KVP_JSON_WORD, KVP_JSON_KEY } kvp_json_event_t;

typedef struct kvp_jsonscan kvp_jsonscan_t;
/* kvp_jsonscan_fn is called for each key and each value, and at both ends of each container (an object or array).
 * In these two calls depth does not count the container itself. Returning false ends the scan. */
typedef bool (*kvp_jsonscan_fn)(void *arg, const kvp_jsonscan_t *s, kvp_json_event_t event);

struct kvp_jsonscan {
    uint32_t depth; /* number of open containers around the value */
    char keys[KVP_JSONSCAN_KEYS][KVP_JSONSCAN_KEY_MAX + 1]; /* current key of each outer level; "" for an array */
    char text[KVP_JSONSCAN_TEXT_MAX + 1]; /* the current number or literal, or the string between its quotes */
    uint32_t text_len; /* length of text; at KVP_JSON_BEGIN: 1 = the container is an object, 0 = an array */
    bool is_cut, has_escape; /* flags of a string: it was cut to the size of `text`; it contains a backslash */
    /* positions of the key or value in the bytes fed; KVP_JSON_BEGIN sets only begin, KVP_JSON_END only end */
    size_t begin, end;

    kvp_jsonscan_fn on;
    void *arg;
    size_t at; /* number of bytes that the scanner has consumed */
    uint64_t objects; /* a bit for each level: set if the container is an object */
    uint8_t state, mode, hex; /* the parser's state; hex: missing digits of a \u escape */
};

void kvp_jsonscan_init(kvp_jsonscan_t *s, kvp_jsonscan_fn on, void *arg);
/* kvp_jsonscan_feed parses the next bytes. It returns false if the text is not JSON with an object as root, if the
 * nesting is too deep, or if `on` returned false. */
bool kvp_jsonscan_feed(kvp_jsonscan_t *s, const char *bytes, size_t len);
bool kvp_jsonscan_is_whole(const kvp_jsonscan_t *s); /* true once the root object has ended */

/* kvp_jsonscan_is_at returns true if the keys on the path from the root to the value are these n keys; "" = an
 * array. */
bool kvp_jsonscan_is_at(const kvp_jsonscan_t *s, const char *const *keys, uint32_t n);

#endif
