/* SPDX-License-Identifier: Apache-2.0
 * The data directory, with a thread of its own. Only this thread writes and reads files after the
 * start, so a disk that hangs or fails stops no event and no answer. The owner of the disk is the
 * thread that submits jobs and reaps them. */
#ifndef KVP_CONDUCTOR_BASE_DISK_H
#define KVP_CONDUCTOR_BASE_DISK_H

#include "common/list.h"

typedef struct kvp_disk kvp_disk_t;

typedef enum { KVP_DISK_REGISTRATIONS, KVP_DISK_JOINS, KVP_DISK_FILES } kvp_disk_file_t;

/* A piece of work on one file. The disk owns it from kvp_disk_submit until done is called. */
typedef struct kvp_disk_job {
    kvp_list_t link;
    kvp_disk_file_t file;
    int error; /* the disk's */
    int (*run)(struct kvp_disk_job *job); /* on the disk's thread; may block; returns 0 or an errno */
    void (*done)(struct kvp_disk_job *job, int error); /* on the owner's thread; error is the result of run */
} kvp_disk_job_t;

/* kvp_disk_create starts the thread; dir is copied. kvp_disk_notify sets a function that the thread
 * calls, with its lock held, when a job is ready to be reaped; NULL = none. NULL: no memory or no
 * thread; logged. */
kvp_disk_t *kvp_disk_create(const char *dir);
void kvp_disk_notify(kvp_disk_t *disk, void (*notify)(void *arg), void *arg);

/* kvp_disk_destroy ends the thread. If a job is still under way, the disk, the job and the thread
 * are left to the end of the process. NULL is legal. */
void kvp_disk_destroy(kvp_disk_t *disk);

/* kvp_disk_submit queues a job; jobs run in this order. kvp_disk_reap calls done for the jobs that have run. */
void kvp_disk_submit(kvp_disk_t *disk, kvp_disk_job_t *job);
void kvp_disk_reap(kvp_disk_t *disk);

/* kvp_disk_finish blocks until the queue is empty, and reaps. False: one job took longer than
 * timeout_ms. */
bool kvp_disk_finish(kvp_disk_t *disk, uint32_t timeout_ms);

/* kvp_disk_busy_ms, of any thread: for how long the current job has been under way; 0 = there is none. */
uint32_t kvp_disk_busy_ms(kvp_disk_t *disk);
/* kvp_disk_trouble, from any thread: the reason why the directory is not written, with its name.
 * False: it is written. */
bool kvp_disk_trouble(kvp_disk_t *disk, char *text, size_t cap);

#endif
