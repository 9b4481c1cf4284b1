/* SPDX-License-Identifier: Apache-2.0
 * The core's random numbers, and notes for the shell's log. */
#include "master/core/base/ctx.h"

#include <stdarg.h>
#include <stdio.h>

/* The generator is xorshift64*, which peers could predict: placement needs an even spread, not secrecy. */
uint64_t
kvp_ctx_random(kvp_ctx_t *ctx)
{
    ctx->rng ^= ctx->rng >> 12;
    ctx->rng ^= ctx->rng << 25;
    ctx->rng ^= ctx->rng >> 27;
    return ctx->rng * 0x2545f4914f6cdd1dull;
}

void
kvp_ctx_note(kvp_ctx_t *ctx, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(ctx->note, sizeof ctx->note, fmt, ap);
    va_end(ap);
}
