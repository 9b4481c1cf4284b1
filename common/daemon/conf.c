/* SPDX-License-Identifier: Apache-2.0
 * Reads options in order of precedence, flags first. A later source only sets options that no earlier source has
 * set. But its values are always checked, so that a flag does not hide a wrong line in a file. */
#include "common/daemon/conf.h"

#include "common/log.h"
#include "common/ram.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define ENV_NAME_MAX 128u
#define STRINGS_MAX 1024u
#define NUMBER_TEXT_MAX 32u
#define BOUNDS_TEXT_MAX (2 * NUMBER_TEXT_MAX + 16u)

typedef enum {
    SOURCE_NONE,
    SOURCE_DEFAULT,
    SOURCE_FILE,
    SOURCE_ENV,
    SOURCE_FLAG,
} source_t;

/* The options of every program. Their values are fields of the kvp_conf_t itself. */
static const kvp_opt_t builtin_opts[] = {
    {KVP_OPT(ENUM, "log-level", kvp_conf_t, log_level), .fallback = "info", .choices = "error|warn|info|debug",
     .help = "The least severe messages that are logged to standard error."},
    {KVP_OPT(ENUM, "log-format", kvp_conf_t, log_format), .fallback = "text", .choices = "text|json",
     .help = "The format of the log: text = logfmt, json = one JSON object a line."},
    {KVP_OPT_TEXT("config", kvp_conf_t, config_path, "FILE"),
     .help = "A file of options, one `name = value` a line; flags and the environment come first."},
};
#define CONFIG_BUILTIN 2u

typedef union {
    const char *string;
    bool is_true;
    uint64_t number;
    kvp_hostport_t hostport;
    int choice;
} value_t;

typedef struct {
    const char *name;
    uint64_t scale;
} unit_t;

static size_t
opt_total(const kvp_conf_spec_t *spec)
{
    return spec->opt_count + KVP_ARRAY_LEN(builtin_opts);
}

static const kvp_opt_t *
opt_at(const kvp_conf_spec_t *spec, size_t i)
{
    return i < spec->opt_count ? &spec->opts[i] : &builtin_opts[i - spec->opt_count];
}

static size_t
opt_find(const kvp_conf_spec_t *spec, const char *name, size_t len)
{
    for (size_t i = 0; i < opt_total(spec); i++) {
        const char *other = opt_at(spec, i)->name;
        if (strncmp(other, name, len) == 0 && other[len] == '\0') return i;
    }
    return SIZE_MAX;
}

static void *
field_of(kvp_conf_t *conf, size_t i, void *settings)
{
    void *base = i < conf->spec->opt_count ? settings : conf;
    return (char *)base + opt_at(conf->spec, i)->offset;
}

static bool
is_config(const kvp_conf_spec_t *spec, size_t i)
{
    return i == spec->opt_count + CONFIG_BUILTIN;
}

static void
env_name(const kvp_opt_t *opt, char name_out[ENV_NAME_MAX])
{
    size_t n = (size_t)snprintf(name_out, ENV_NAME_MAX, "KVPOOL_%s", opt->name);
    for (size_t i = 0; i < n && i < ENV_NAME_MAX; i++) {
        name_out[i] = name_out[i] == '-' ? '_' : (char)toupper((unsigned char)name_out[i]);
    }
}

static KVP_PRINTF(3, 4) kvp_err_t print_complaint(const kvp_conf_t *conf, const char *where, const char *fmt, ...)
{
    va_list ap;
    fprintf(conf->err, "%s: %s: ", conf->spec->program, where);
    va_start(ap, fmt);
    vfprintf(conf->err, fmt, ap);
    va_end(ap);
    fputc('\n', conf->err);
    return KVP_INVALID;
}

void
kvp_conf_init(kvp_conf_t *conf, const kvp_conf_spec_t *spec)
{
    memset(conf, 0, sizeof(*conf));
    conf->spec = spec;
    conf->out = stdout;
    conf->err = stderr;
    kvp_list_init(&conf->memory);
}

void
kvp_conf_fini(kvp_conf_t *conf)
{
    kvp_list_foreach_safe (pos, tmp, &conf->memory)
        free(pos);
    free(conf->sources);
    kvp_conf_init(conf, conf->spec);
}

/* Allocates memory that kvp_conf_fini frees. The memory begins after its link in the list conf->memory. */
static void *
alloc_setting(kvp_conf_t *conf, size_t bytes)
{
    kvp_list_t *link = malloc(sizeof *link + bytes);
    if (link == NULL) return NULL;
    kvp_list_add_tail(&conf->memory, link);
    return link + 1;
}

static const char *
keep_text(kvp_conf_t *conf, const char *text)
{
    size_t size = strlen(text) + 1;
    char *kept = alloc_setting(conf, size);
    return kept == NULL ? NULL : memcpy(kept, text, size);
}

static kvp_err_t
parse_bool(const char *text, bool *is_true_out)
{
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0"};
    for (size_t i = 0; i < KVP_ARRAY_LEN(yes); i++) {
        bool is_yes = strcmp(text, yes[i]) == 0;
        if (!is_yes && strcmp(text, no[i]) != 0) continue;
        *is_true_out = is_yes;
        return KVP_OK;
    }
    return KVP_INVALID;
}

static kvp_err_t
parse_choice(const char *text, const char *choices, int *choice_out)
{
    size_t len = strlen(text);
    int i = 0;
    for (const char *at = choices;; i++) {
        size_t n = strcspn(at, "|");
        if (n == len && memcmp(at, text, n) == 0) {
            *choice_out = i;
            return KVP_OK;
        }
        if (at[n] == '\0') return KVP_INVALID;
        at += n + 1;
    }
}

static kvp_err_t
parse_memory(const char *text, uint64_t *bytes_out)
{
    char digits[4] = "";
    size_t len = strlen(text);
    uint64_t percent;
    kvp_ram_t ram;

    if (len == 0 || text[len - 1] != '%') return kvp_parse_bytes(text, bytes_out);
    if (len > sizeof digits) return KVP_INVALID;
    memcpy(digits, text, len - 1);
    if (kvp_parse_u64(digits, &percent) != KVP_OK || percent == 0 || percent > 100) return KVP_INVALID;
    kvp_ram_look("", &ram);
    if (ram.total_bytes == UINT64_MAX) return KVP_INVALID;
    *bytes_out = ram.total_bytes / 100 * percent;
    return KVP_OK;
}

static kvp_err_t
parse_value(const kvp_opt_t *opt, const char *text, value_t *value_out)
{
    switch (opt->type) {
    case KVP_OPT_BOOL:
        return parse_bool(text, &value_out->is_true);
    case KVP_OPT_U64:
        return kvp_parse_u64(text, &value_out->number);
    case KVP_OPT_BYTES:
        return kvp_parse_bytes(text, &value_out->number);
    case KVP_OPT_MEMORY:
        return parse_memory(text, &value_out->number);
    case KVP_OPT_DURATION_NS:
        return kvp_parse_duration_ns(text, &value_out->number);
    case KVP_OPT_HOSTPORT:
        if (strcmp(text, "none") == 0) {
            value_out->hostport = (kvp_hostport_t){0};
            return KVP_OK;
        }
        return kvp_parse_hostport(text, &value_out->hostport);
    case KVP_OPT_ENUM:
        return parse_choice(text, opt->choices, &value_out->choice);
    case KVP_OPT_STRING:
    case KVP_OPT_STRINGS:
        value_out->string = text;
        return KVP_OK;
    }
    kvp_panic("option %s has no type", opt->name);
}

static const char *
expected_value(const kvp_opt_t *opt)
{
    switch (opt->type) {
    case KVP_OPT_BOOL:
        return "true or false";
    case KVP_OPT_U64:
        return "a whole number";
    case KVP_OPT_BYTES:
        return "a size such as 4GiB, 16MB or 4096";
    case KVP_OPT_MEMORY:
        return "a size such as 4GiB, or a share of this machine's memory such as 80%";
    case KVP_OPT_DURATION_NS:
        return "a time such as 10s, 50ms or 2m";
    case KVP_OPT_HOSTPORT:
        return "HOST:PORT, [IPV6]:PORT or none";
    case KVP_OPT_ENUM:
        return opt->choices;
    case KVP_OPT_STRING:
    case KVP_OPT_STRINGS:
        break;
    }
    return "a text";
}

static bool
is_in_bounds(const kvp_opt_t *opt, const value_t *value)
{
    bool is_number = opt->type == KVP_OPT_U64 || opt->type == KVP_OPT_BYTES || opt->type == KVP_OPT_MEMORY ||
                     opt->type == KVP_OPT_DURATION_NS;
    if (!is_number) return true;
    return value->number >= opt->min && (opt->max == 0 || value->number <= opt->max);
}

/* say_number writes a value in the largest unit that divides it, as a user would write it. */
static const char *
say_number(const kvp_opt_t *opt, uint64_t value, char dst[NUMBER_TEXT_MAX])
{
    static const unit_t sizes[] = {
        {"TiB", 1ull << 40}, {"GiB", 1ull << 30}, {"MiB", 1ull << 20}, {"KiB", 1ull << 10}, {"B", 1}};
    static const unit_t times[] = {{"h", 3600000000000}, {"m", 60000000000}, {"s", 1000000000},
                                   {"ms", 1000000},      {"us", 1000},       {"ns", 1}};
    static const unit_t plain[] = {{"", 1}};
    const unit_t *unit = opt->type == KVP_OPT_BYTES || opt->type == KVP_OPT_MEMORY ? sizes
                         : opt->type == KVP_OPT_DURATION_NS                        ? times
                                                                                   : plain;
    while (unit->scale > 1 && (value == 0 || value % unit->scale != 0))
        unit++;
    snprintf(dst, NUMBER_TEXT_MAX, "%llu%s", (unsigned long long)(value / unit->scale), unit->name);
    return dst;
}

static const char *
say_bounds(const kvp_opt_t *opt, char dst[BOUNDS_TEXT_MAX])
{
    char low[NUMBER_TEXT_MAX], high[NUMBER_TEXT_MAX];
    if (opt->max == 0)
        snprintf(dst, BOUNDS_TEXT_MAX, "at least %s", say_number(opt, opt->min, low));
    else
        snprintf(dst, BOUNDS_TEXT_MAX, "from %s to %s", say_number(opt, opt->min, low),
                 say_number(opt, opt->max, high));
    return dst;
}

/* append_string adds a text to a list. The array doubles; the old array stays in conf->memory until kvp_conf_fini. */
static kvp_err_t
append_string(kvp_conf_t *conf, kvp_strings_t *strings, const char *text)
{
    size_t n = strings->count;
    if (n == STRINGS_MAX) return KVP_LIMIT;
    if ((n & (n - 1)) == 0) {
        const char **items = alloc_setting(conf, kvp_max_u64(n * 2, 1) * sizeof(*items));
        if (items == NULL) return KVP_NOMEM;
        if (n > 0) memcpy(items, strings->items, n * sizeof(*items));
        strings->items = items;
    }
    const char *kept = keep_text(conf, text);
    if (kept == NULL) return KVP_NOMEM;
    strings->items[strings->count++] = kept;
    return KVP_OK;
}

static kvp_err_t
store_value(kvp_conf_t *conf, const kvp_opt_t *opt, const value_t *value, void *field)
{
    switch (opt->type) {
    case KVP_OPT_BOOL:
        *(bool *)field = value->is_true;
        break;
    case KVP_OPT_U64:
    case KVP_OPT_BYTES:
    case KVP_OPT_MEMORY:
    case KVP_OPT_DURATION_NS:
        *(uint64_t *)field = value->number;
        break;
    case KVP_OPT_HOSTPORT:
        *(kvp_hostport_t *)field = value->hostport;
        break;
    case KVP_OPT_ENUM:
        *(int *)field = value->choice;
        break;
    case KVP_OPT_STRING: {
        const char *kept = keep_text(conf, value->string);
        if (kept == NULL) return KVP_NOMEM;
        *(const char **)field = kept;
        break;
    }
    case KVP_OPT_STRINGS:
        return append_string(conf, field, value->string);
    }
    return KVP_OK;
}

/* set_option checks a value and stores it, unless a source of higher precedence has set the option. */
static kvp_err_t
set_option(kvp_conf_t *conf, size_t i, const char *text, source_t source, const char *where, void *settings)
{
    const kvp_opt_t *opt = opt_at(conf->spec, i);
    value_t value;
    if (parse_value(opt, text, &value) != KVP_OK) {
        return print_complaint(conf, where, "'%s' is no value for %s: expected %s", text, opt->name,
                               expected_value(opt));
    }
    if (!is_in_bounds(opt, &value)) {
        char bounds[BOUNDS_TEXT_MAX];
        return print_complaint(conf, where, "%s is out of bounds for %s: %s", text, opt->name, say_bounds(opt, bounds));
    }
    if (conf->sources[i] > source) return KVP_OK;
    if (conf->sources[i] == SOURCE_FILE && source == SOURCE_FILE && opt->type != KVP_OPT_STRINGS) {
        return print_complaint(conf, where, "%s is given twice", opt->name);
    }
    if (conf->sources[i] != source && opt->type == KVP_OPT_STRINGS) {
        *(kvp_strings_t *)field_of(conf, i, settings) = (kvp_strings_t){0};
    }
    conf->sources[i] = (uint8_t)source;
    kvp_err_t err = store_value(conf, opt, &value, field_of(conf, i, settings));
    if (err != KVP_OK) kvp_ignore(print_complaint(conf, where, "%s", kvp_err_text(err)), "the error is passed on");
    return err;
}

static kvp_err_t
make_sources(kvp_conf_t *conf)
{
    if (conf->sources == NULL) conf->sources = calloc(opt_total(conf->spec), sizeof(*conf->sources));
    return conf->sources == NULL ? KVP_NOMEM : KVP_OK;
}

static char *
trim_text(char *text)
{
    while (*text == ' ' || *text == '\t')
        text++;
    size_t len = strlen(text);
    while (len > 0 && strchr(" \t\r", text[len - 1]) != NULL)
        len--;
    text[len] = '\0';
    return text;
}

static void
cut_comment(char *line)
{
    for (char *at = strchr(line, '#'); at != NULL; at = strchr(at + 1, '#')) {
        if (at != line && at[-1] != ' ' && at[-1] != '\t') continue;
        *at = '\0';
        return;
    }
}

static kvp_err_t
parse_line(kvp_conf_t *conf, char *line, const char *where, void *settings)
{
    cut_comment(line);
    line = trim_text(line);
    if (*line == '\0') return KVP_OK;
    char *equals = strchr(line, '=');
    if (equals == NULL) return print_complaint(conf, where, "expected `name = value`");
    *equals = '\0';
    const char *name = trim_text(line);
    size_t i = opt_find(conf->spec, name, strlen(name));
    if (i == SIZE_MAX || is_config(conf->spec, i)) return print_complaint(conf, where, "unknown option '%s'", name);
    return set_option(conf, i, trim_text(equals + 1), SOURCE_FILE, where, settings);
}

kvp_err_t
kvp_conf_parse_text(kvp_conf_t *conf, const char *text, size_t len, const char *origin, void *settings)
{
    kvp_err_t err = make_sources(conf);
    const char *end = text + len;
    for (unsigned number = 1; err == KVP_OK && text < end; number++) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t line_len = (size_t)((newline != NULL ? newline : end) - text);
        char where[512];
        snprintf(where, sizeof(where), "%s:%u", origin, number);
        if (line_len > KVP_CONF_LINE_MAX)
            return print_complaint(conf, where, "line is longer than %u", KVP_CONF_LINE_MAX);
        if (memchr(text, '\0', line_len) != NULL) return print_complaint(conf, where, "line has a NUL byte");
        char line[KVP_CONF_LINE_MAX + 1];
        memcpy(line, text, line_len);
        line[line_len] = '\0';
        err = parse_line(conf, line, where, settings);
        text += newline != NULL ? line_len + 1 : line_len;
    }
    return err;
}

static kvp_err_t
parse_file(kvp_conf_t *conf, const char *path, void *settings)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) return print_complaint(conf, path, "cannot open: %m");
    kvp_err_t err;
    char *text = malloc(KVP_CONF_FILE_MAX + 1);
    if (text == NULL) {
        err = print_complaint(conf, path, "out of memory");
        goto out;
    }
    size_t len = fread(text, 1, KVP_CONF_FILE_MAX + 1, file);
    if (ferror(file)) {
        err = print_complaint(conf, path, "cannot read: %m");
    } else if (len > KVP_CONF_FILE_MAX) {
        err = print_complaint(conf, path, "file is longer than %u bytes", KVP_CONF_FILE_MAX);
    } else {
        err = kvp_conf_parse_text(conf, text, len, path, settings);
    }
out:
    free(text);
    fclose(file);
    return err;
}

/* parse_env_list sets a list option from an environment variable, whose items are separated by commas. */
static kvp_err_t
parse_env_list(kvp_conf_t *conf, size_t i, const char *text, const char *where, void *settings)
{
    char *copy = strdup(text);
    if (copy == NULL) return KVP_NOMEM;
    kvp_err_t err = KVP_OK;
    char *rest = copy;
    for (char *item = strsep(&rest, ","); item != NULL && err == KVP_OK; item = strsep(&rest, ",")) {
        err = set_option(conf, i, trim_text(item), SOURCE_ENV, where, settings);
    }
    free(copy);
    return err;
}

static kvp_err_t
parse_env(kvp_conf_t *conf, void *settings)
{
    kvp_err_t err = KVP_OK;
    for (size_t i = 0; i < opt_total(conf->spec) && err == KVP_OK; i++) {
        const kvp_opt_t *opt = opt_at(conf->spec, i);
        char name[ENV_NAME_MAX];
        env_name(opt, name);
        const char *text = getenv(name);
        if (text == NULL || *text == '\0') continue;
        err = opt->type == KVP_OPT_STRINGS ? parse_env_list(conf, i, text, name, settings)
                                           : set_option(conf, i, text, SOURCE_ENV, name, settings);
    }
    return err;
}

static kvp_err_t
parse_defaults(kvp_conf_t *conf, void *settings)
{
    for (size_t i = 0; i < opt_total(conf->spec); i++) {
        const kvp_opt_t *opt = opt_at(conf->spec, i);
        if (conf->sources[i] != SOURCE_NONE) continue;
        if (opt->is_required) {
            char name[ENV_NAME_MAX];
            env_name(opt, name);
            return print_complaint(conf, "usage", "--%s (or %s) is required", opt->name, name);
        }
        if (opt->fallback == NULL) continue;
        kvp_err_t err = set_option(conf, i, opt->fallback, SOURCE_DEFAULT, "default", settings);
        if (err == KVP_INVALID) kvp_panic("bad default of option %s", opt->name);
        if (err != KVP_OK) return err;
    }
    return KVP_OK;
}

/* run_info handles the flags that print something and end the program with success. Returns false for other flags. */
static bool
run_info(const kvp_conf_t *conf, const char *arg)
{
    if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
        kvp_conf_help(conf->spec, conf->out);
    } else if (strcmp(arg, "--version") == 0) {
        fprintf(conf->out, "%s %s\n", conf->spec->program, KVP_RELEASE);
    } else if (strcmp(arg, "--print-config") == 0) {
        kvp_conf_print(conf->spec, conf->out);
    } else {
        return false;
    }
    fflush(conf->out);
    return true;
}

/* is_bool_value returns whether next, the argument after a boolean flag, is the flag's value. In a program with
 * operands next is never a value, because it may be an operand. */
static bool
is_bool_value(const kvp_conf_t *conf, const char *next)
{
    bool is_true;
    return next != NULL && conf->spec->operands == NULL && parse_bool(next, &is_true) == KVP_OK;
}

/* parse_flag parses the flag arg. next is the argument after it, or NULL. */
static kvp_err_t
parse_flag(kvp_conf_t *conf, const char *arg, const char *next, bool *used_next_out, void *settings)
{
    *used_next_out = false;
    const char *name = arg + 2;
    size_t len = strcspn(name, "=");
    size_t i = strncmp(arg, "--", 2) == 0 ? opt_find(conf->spec, name, len) : SIZE_MAX;
    if (i == SIZE_MAX) return print_complaint(conf, arg, "unknown option (--help lists them)");
    const kvp_opt_t *opt = opt_at(conf->spec, i);
    const char *text = NULL;
    if (name[len] == '=') {
        text = name + len + 1;
    } else if (opt->type == KVP_OPT_BOOL && !is_bool_value(conf, next)) {
        text = "true";
    } else if (next != NULL) {
        text = next;
        *used_next_out = true;
    } else {
        return print_complaint(conf, arg, "needs a value: %s", expected_value(opt));
    }
    char where[ENV_NAME_MAX];
    snprintf(where, sizeof(where), "--%s", opt->name);
    return set_option(conf, i, text, SOURCE_FLAG, where, settings);
}

/* parse_argv parses all flags and moves the operands to the front of argv. */
static kvp_err_t
parse_argv(kvp_conf_t *conf, int argc, char **argv, bool *is_done_out, void *settings)
{
    bool is_flags_over = false;
    conf->argv = argv + 1;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (!is_flags_over && strcmp(arg, "--") == 0) {
            is_flags_over = true;
        } else if (is_flags_over || arg[0] != '-' || arg[1] == '\0') {
            if (conf->spec->operands == NULL) return print_complaint(conf, arg, "unexpected argument");
            conf->argv[conf->argc++] = argv[i];
        } else if (run_info(conf, arg)) {
            *is_done_out = true;
            return KVP_OK;
        } else {
            bool used_next;
            const char *next = i + 1 < argc ? argv[i + 1] : NULL;
            kvp_err_t err = parse_flag(conf, arg, next, &used_next, settings);
            if (err != KVP_OK) return err;
            i += used_next;
        }
    }
    return KVP_OK;
}

int
kvp_conf_parse(kvp_conf_t *conf, int argc, char **argv, void *settings)
{
    bool is_done = false;
    kvp_err_t err = make_sources(conf);
    if (err == KVP_OK) err = parse_argv(conf, argc, argv, &is_done, settings);
    if (is_done) return 0;
    if (err == KVP_OK) err = parse_env(conf, settings);
    if (err == KVP_OK && conf->config_path != NULL) err = parse_file(conf, conf->config_path, settings);
    if (err == KVP_OK) err = parse_defaults(conf, settings);
    if (err != KVP_OK) return KVP_CONF_USAGE;
    kvp_log_set_level((kvp_log_level_t)conf->log_level);
    kvp_log_set_format((kvp_log_format_t)conf->log_format);
    return KVP_CONF_RUN;
}

static const char *
metavar_of(const kvp_opt_t *opt)
{
    static const char *const by_type[] = {
        [KVP_OPT_STRING] = "TEXT",        [KVP_OPT_BOOL] = "true|false", [KVP_OPT_U64] = "N",
        [KVP_OPT_BYTES] = "SIZE",         [KVP_OPT_MEMORY] = "SIZE|N%",  [KVP_OPT_DURATION_NS] = "TIME",
        [KVP_OPT_HOSTPORT] = "HOST:PORT", [KVP_OPT_ENUM] = "CHOICE",     [KVP_OPT_STRINGS] = "TEXT",
    };
    if (opt->metavar != NULL) return opt->metavar;
    return opt->type == KVP_OPT_ENUM ? opt->choices : by_type[opt->type];
}

void
kvp_conf_help(const kvp_conf_spec_t *spec, FILE *to)
{
    fprintf(to, "usage: %s [options]%s%s\n%s\n\noptions:\n", spec->program, spec->operands != NULL ? " " : "",
            spec->operands != NULL ? spec->operands : "", spec->summary);
    for (size_t i = 0; i < opt_total(spec); i++) {
        const kvp_opt_t *opt = opt_at(spec, i);
        char name[ENV_NAME_MAX];
        env_name(opt, name);
        if (opt->type == KVP_OPT_BOOL) {
            fprintf(to, "  --%s [true|false]\n", opt->name);
        } else {
            fprintf(to, "  --%s %s\n", opt->name, metavar_of(opt));
        }
        fprintf(to, "        %s\n        (", opt->help);
        if (opt->is_required) fputs("required; ", to);
        if (opt->fallback != NULL) fprintf(to, "default %s; ", opt->fallback);
        if (opt->type == KVP_OPT_STRINGS) fputs("may be repeated; ", to);
        fprintf(to, "%s)\n", name);
    }
    fputs("  --print-config\n        Prints a config file with every option and its default.\n"
          "  --version\n  --help\n",
          to);
}

void
kvp_conf_print(const kvp_conf_spec_t *spec, FILE *to)
{
    fprintf(to, "# %s: %s\n", spec->program, spec->summary);
    for (size_t i = 0; i < opt_total(spec); i++) {
        const kvp_opt_t *opt = opt_at(spec, i);
        if (is_config(spec, i)) continue;
        fprintf(to, "\n# %s", opt->help);
        if (opt->choices != NULL) fprintf(to, " One of %s.", opt->choices);
        if (opt->is_required) fputs(" Required.", to);
        if (opt->type == KVP_OPT_STRINGS) fputs(" May be repeated.", to);
        fprintf(to, "\n#%s = %s\n", opt->name, opt->fallback != NULL ? opt->fallback : metavar_of(opt));
    }
}
