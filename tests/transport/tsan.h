/* SPDX-License-Identifier: Apache-2.0
 * Whether this was built with ThreadSanitizer, under which a test that repeats itself takes some fifty times as long.
 */
#ifndef KVP_TESTS_TRANSPORT_TSAN_H
#define KVP_TESTS_TRANSPORT_TSAN_H

#if defined(__SANITIZE_THREAD__)
#define IS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define IS_TSAN 1
#endif
#endif
#ifndef IS_TSAN
#define IS_TSAN 0
#endif

#endif
