/* SPDX-License-Identifier: Apache-2.0
 * Which sanitizer this was built with: a test that repeats itself takes some fifty times as long under
 * ThreadSanitizer, and some ten times under AddressSanitizer. */
#ifndef KVP_TESTS_TRANSPORT_SANITIZER_H
#define KVP_TESTS_TRANSPORT_SANITIZER_H

#if defined(__has_feature)
#define KVP_HAS_FEATURE(f) __has_feature(f)
#else
#define KVP_HAS_FEATURE(f) 0
#endif

#if defined(__SANITIZE_THREAD__) || KVP_HAS_FEATURE(thread_sanitizer)
#define IS_TSAN 1
#else
#define IS_TSAN 0
#endif

#if IS_TSAN || defined(__SANITIZE_ADDRESS__) || KVP_HAS_FEATURE(address_sanitizer)
#define IS_SANITIZED 1
#else
#define IS_SANITIZED 0
#endif

#endif
