/* SPDX-License-Identifier: Apache-2.0
 * The error codes of the project, installed beside kvpool.h. The numbers travel on the wire and become Python
 * exceptions, so a number is never changed or reused. docs/PROTOCOL.md repeats the table, and a test compares both. */
#ifndef KVPOOL_ERR_H
#define KVPOOL_ERR_H

#ifdef __cplusplus
extern "C" {
#endif

/* Rows X(number, NAME, Mooncake's code for the drop-in Python module, text). The number shows what is lost by the
 * error: -1..-29 the request, -30..-49 the connection, -50..-69 the segment, -70..-89 the process. */
#define KVPOOL_ERR_MAP(X)                                                                                              \
    X(0, OK, 0, "ok")                                                                                                  \
    X(-1, INVALID, -600, "invalid argument")                                                                           \
    X(-2, NOT_FOUND, -704, "no such object")                                                                           \
    X(-3, ALREADY, 0, "object exists and is committed")                                                                \
    X(-4, IN_PROGRESS, -703, "another live writer is putting this key")                                                \
    X(-5, COLLISION, -400, "another key has the same digest")                                                          \
    X(-6, NO_SPACE, -200, "no space, even after eviction")                                                             \
    X(-7, RETRY_AFTER, -200, "not possible at this moment; retry later")                                               \
    X(-8, HELD, -706, "object is held by a reader or a reservation")                                                   \
    X(-9, DEADLINE, -900, "deadline passed")                                                                           \
    X(-10, BUFFER_SMALL, -600, "buffer is smaller than the object")                                                    \
    X(-11, NOT_REGISTERED, -600, "buffer is not registered")                                                           \
    X(-12, TOO_LARGE, -600, "value is larger than a chunk, or a request than its limit")                               \
    X(-13, BAD_KEY, -600, "key is empty or longer than 1024 bytes")                                                    \
    X(-14, ABORTED, -700, "the attempt was aborted")                                                                   \
    X(-15, STALE, -704, "the bytes are gone or were replaced while they were read")                                    \
    X(-16, NOTSUP, -600, "not supported here")                                                                         \
    X(-17, CANCELLED, -900, "cancelled")                                                                               \
    X(-18, NOMEM, -1, "out of memory")                                                                                 \
    X(-19, BAD_PATTERN, -600, "bad or too costly pattern")                                                             \
    X(-20, EAGAIN, -200, "back-pressure; retry")                                                                       \
    X(-21, LIMIT, -600, "a limit on count or bytes was reached")                                                       \
    X(-22, LOG_FAILED, -200, "the master cannot write its log: free or repair its log disk")                           \
    X(-30, PROTO, -1, "malformed message")                                                                             \
    X(-31, VERSION, -300, "protocol versions do not match")                                                            \
    X(-32, UNREACHABLE, -900, "peer cannot be reached")                                                                \
    X(-33, DISCONNECTED, -900, "connection lost")                                                                      \
    X(-34, BUSY, -900, "peer has no capacity for another connection")                                                  \
    X(-35, FENCED, -601, "this client was fenced")                                                                     \
    X(-36, STALE_TERM, -601, "the order is of an older term")                                                          \
    X(-37, NOT_LEADER, -1010, "this master does not lead")                                                             \
    X(-38, DENIED, -601, "the identity is missing, unknown, or its role may not do this")                              \
    X(-39, EXPIRED, -601, "the certificate or token has ended")                                                        \
    X(-50, NODE_LOST, -704, "the node that holds the object cannot be reached")                                        \
    X(-51, NO_SEGMENT, -101, "no such segment")                                                                        \
    X(-52, SEGMENT_EXISTS, -102, "a segment of that name is mounted")                                                  \
    X(-53, CORRUPT, -704, "checksum does not match")                                                                   \
    X(-70, CLOSED, -600, "handle is closed")                                                                           \
    X(-71, FORKED, -600, "handle was opened before fork")                                                              \
    X(-72, SYS, -1, "a system call failed")                                                                            \
    X(-73, INTERNAL, -1, "internal error")

enum {
#define KVPOOL_ERR_ENUM(num, name, dropin, text) KVPOOL_##name = (num),
    KVPOOL_ERR_MAP(KVPOOL_ERR_ENUM)
#undef KVPOOL_ERR_ENUM
};

#ifdef __cplusplus
}
#endif
#endif
