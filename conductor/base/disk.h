/* SPDX-License-Identifier: Apache-2.0
 * The conductor's data directory. After the start, only the thread of the disk object writes and reads files there, so
 * a storage device that hangs or fails delays no KV event and no query. The disk object's owner is the thread that
 * submits jobs and reaps them. */
#ifndef KVP_CONDUCTOR_BASE_DISK_H
#define KVP_CONDUCTOR_BASE_DISK_H

#include "common/list.h"

typedef struct kvp_disk kvp_disk_t;

typedef enum { KVP_DISK_REGISTRATIONS, KVP_DISK_JOINS, KVP_DISK_FILES } kvp_disk_file_t;

/* A unit of work on one file. The disk owns the job from kvp_disk_submit until it calls `done`. */
typedef struct kvp_disk_job {
    kvp_list_t link;
    kvp_disk_file_t file;
    int error; /* result of `run`: 0 or an errno; set by the disk's thread */
    /* does the job's work on the disk's thread; may block; returns 0 or an errno */
    int (*run)(struct kvp_disk_job *job);
    /* called by kvp_disk_reap on the owner's thread after the job has run; error is the result of `run` */
    void (*done)(struct kvp_disk_job *job, int error);
} kvp_disk_job_t;

/* kvp_disk_create starts the thread and copies dir. It returns NULL without memory, or without a thread (logged).
 * kvp_disk_notify sets a function that the thread calls, with its lock held, when a job can be reaped; NULL = none. */
kvp_disk_t *kvp_disk_create(const char *dir);
void kvp_disk_notify(kvp_disk_t *disk, void (*notify)(void *arg), void *arg);

/* kvp_disk_destroy ends the thread and frees the disk. If a job is still queued or running, it does not wait, and the
 * disk is never freed, so its jobs must stay valid until the process exits. NULL is legal. */
void kvp_disk_destroy(kvp_disk_t *disk);

/* kvp_disk_submit queues a job; jobs run in the order of their submission. kvp_disk_reap calls `done` for each job
 * that has run. */
void kvp_disk_submit(kvp_disk_t *disk, kvp_disk_job_t *job);
void kvp_disk_reap(kvp_disk_t *disk);

/* kvp_disk_finish blocks until all jobs have run, and reaps them. It returns false if no job ended for timeout_ms. */
bool kvp_disk_finish(kvp_disk_t *disk, uint32_t timeout_ms);

/* kvp_disk_busy_ms returns for how long the current job has been running; 0 = no job runs. Any thread may call it. */
uint32_t kvp_disk_busy_ms(kvp_disk_t *disk);
/* kvp_disk_trouble returns true if the last job of a file failed, or a job has been running for 2 s. It then writes
 * the reason and the directory's name to text. Any thread may call it. */
bool kvp_disk_trouble(kvp_disk_t *disk, char *text, size_t cap);

#endif
