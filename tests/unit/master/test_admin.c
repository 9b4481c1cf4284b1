/* SPDX-License-Identifier: Apache-2.0
 * The admin port: health and metrics of a running master, and of one whose loop is stuck. */
#include "master/admin.h"

#include "tests/unit/master/fixture.h"

#include "common/log.h"

#include <arpa/inet.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct {
    fixture_t fix;
    kvp_admin_t admin;
    kvp_http_t *http;
    kvp_hostport_t at;
} site_t;

static char answer[1 << 20];

static int
setup(void **state)
{
    site_t *site = calloc(1, sizeof(*site));
    kvp_hostport_t any;

    assert_non_null(site);
    assert_int_equal(kvp_admin_init(&site->admin), KVP_OK);
    fixture_start(&site->fix, &(kvp_server_conf_t){0}, &site->admin.times);
    site->http = kvp_http_create();
    assert_non_null(site->http);
    fixture_t *fix = &site->fix;
    assert_int_equal(kvp_admin_route(&site->admin, site->http, &fix->loop, fix->server, NULL, NULL), KVP_OK);
    assert_int_equal(kvp_parse_hostport("127.0.0.1:0", &any), KVP_OK);
    assert_int_equal(kvp_http_start(site->http, &any, &site->at), KVP_OK);
    *state = site;
    return 0;
}

static int
teardown(void **state)
{
    site_t *site = *state;
    kvp_http_destroy(site->http);
    fixture_finish(&site->fix);
    kvp_admin_fini(&site->admin);
    free(site);
    return 0;
}

/* get asks for a path and returns the status; the whole answer is in `answer`. */
static int
get(const site_t *site, const char *path)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), status = 0;
    size_t len = 0;

    assert_true(fd >= 0);
    at.sin_port = htons(site->at.port);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_true(dprintf(fd, "GET %s HTTP/1.0\r\n\r\n", path) > 0);
    for (ssize_t n = 1; n > 0; len += (size_t)n) {
        n = read(fd, answer + len, sizeof(answer) - 1 - len);
        assert_true(n >= 0);
    }
    answer[len] = '\0';
    close(fd);
    assert_int_equal(sscanf(answer, "HTTP/1.%*d %d", &status), 1);
    return status;
}

static void
assert_has(const char *text)
{
    if (strstr(answer, text) == NULL) fail_msg("no \"%s\" in the answer", text);
}

TEST_WITH(test_health_says_why, setup, teardown)
{
    assert_int_equal(get(*state, "/health"), 200);
    assert_has("\"status\":\"degraded\",\"role\":\"leader\",\"why\":[\"there is no node: nothing can be stored\"]");
    assert_has("\"pool_id\":\"ab010000\"");
    assert_has("\"term\":1");
}

/* Times are in seconds there. */
static void
assert_figure(const char *name, bool is_gauge)
{
    const size_t len = strlen(name);
    const bool is_time = len > 3 && (strcmp(name + len - 3, "_ns") == 0 || strcmp(name + len - 3, "_ms") == 0);
    char line[128];

    snprintf(line, sizeof line, "\nkvpool_master_%.*s%s%s ", (int)(is_time ? len - 3 : len), name,
             is_time ? "_seconds" : "", is_gauge ? "" : "_total");
    assert_has(line);
}

TEST_WITH(test_metrics_have_every_figure, setup, teardown)
{
    assert_int_equal(get(*state, "/metrics"), 200);
#define FIGURE(name, help) assert_figure(#name, strstr(help, "(gauge)") != NULL);
    KVP_MASTER_STATS(FIGURE)
    KVP_SERVER_STATS(FIGURE)
#undef FIGURE
    assert_has("\nkvpool_master_term 1\n");
    assert_has("\nkvpool_master_loop_turn_seconds_bucket{le=\"+Inf\"} ");
    assert_has("\nkvpool_master_step_seconds_bucket{le=\"+Inf\"} ");
    assert_has("\nkvpool_master_step_run_seconds_bucket{le=\"+Inf\"} ");
    assert_has("\nkvpool_master_answer_seconds_bucket{le=\"+Inf\"} ");
    /* Each scrape is a turn of the loop. */
    assert_null(strstr(answer, "\nkvpool_master_turn_longest_seconds 0\n"));
}

TEST_WITH(test_page_and_nothing_else, setup, teardown)
{
    assert_int_equal(get(*state, "/"), 200);
    assert_has("\r\n\r\n<!DOCTYPE html>");
    assert_int_equal(get(*state, "/nothing"), 404);
}

typedef struct {
    site_t *site;
    _Atomic bool is_stuck;
    _Atomic bool may_go_on;
} jam_t;

static void
jam(void *arg)
{
    jam_t *j = arg;
    atomic_store(&j->is_stuck, true);
    while (!atomic_load(&j->may_go_on))
        usleep(1000);
}

static void *
jam_the_loop(void *arg)
{
    jam_t *j = arg;
    assert_int_equal(kvp_loop_call(&j->site->fix.loop, jam, j, WAIT_MS), KVP_OK);
    return NULL;
}

TEST_WITH(test_stuck_loop_is_not_healthy, setup, teardown)
{
    jam_t j = {.site = *state};
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, jam_the_loop, &j), 0);
    while (!atomic_load(&j.is_stuck))
        usleep(1000);
    assert_int_equal(get(*state, "/health"), 503);
    assert_has("\"status\":\"stuck\"");
    assert_has("\"role\":\"leader\"");
    assert_int_equal(get(*state, "/overview"), 503);
    assert_has("the master's loop does not answer");
    atomic_store(&j.may_go_on, true);
    pthread_join(thread, NULL);
    assert_int_equal(get(*state, "/health"), 200);
}

/* What these tests provoke is logged as it should be, and not wanted here. */
static void
drop_line(void *arg, kvp_log_level_t level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
}

int
main(void)
{
    kvp_log_set_sink(drop_line, NULL);
    return run_cases(NULL, NULL);
}
