/* SPDX-License-Identifier: Apache-2.0
 * The functions by which a node reads the objects of other nodes (node/fetch.h). */
#ifndef KVP_CLIENT_DATA_FETCH_H
#define KVP_CLIENT_DATA_FETCH_H

#include "node/fetch.h"

extern const kvp_fetch_ops_t kvp_fetch_ops;

#endif
