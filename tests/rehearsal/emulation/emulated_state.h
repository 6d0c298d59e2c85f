/* What the emulated machine is: state.json, which a test writes, and what this boot made of it.
 * The files are read anew whenever a client starts: settings by environment would be lost through
 * sudo and systemd (NVIDIA facts, "Emulating it").
 *
 * The libraries are compiled on control and run on older distributions: only old libc symbols are
 * used (no strtol or sscanf, which newer headers bind to symbols that Debian 12 lacks).
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef ROOT
#define ROOT "" /* a test may put the whole machine into a folder */
#endif
#define STATE_PATH ROOT "/var/lib/emulated-gpu/state.json"
#define BOOT_PATH ROOT "/run/emulated-gpu/boot.json"
#define LOADED_PATH ROOT "/sys/module/nvidia/version"
#if !defined DRIVER_VERSION || !defined CUDA_VERSION
#error "say for which driver the library is, and for which CUDA"
#endif

#define EXPORT __attribute__((visibility("default")))
#define MIB (1024ull * 1024ull)
#define MAX_FILE (1 << 20)
#define MAX_DEPTH 32
#define MAX_CARDS 16
#define MAX_PROCESSES 64
#define TEXT 96

/* ---- a strict JSON reader ------------------------------------------------------------------ */

enum kind { NUL, BOOLEAN, INTEGER, REAL, STRING, ARRAY, OBJECT };

struct value {
    enum kind kind;
    long long integer;          /* INTEGER, and 0 or 1 for BOOLEAN */
    char *text;                 /* STRING */
    char *key;                  /* of a member of an object */
    struct value *child, *next; /* ARRAY and OBJECT */
};

struct reader { const char *at, *end; int depth; };

static struct value *read_value(struct reader *r);

static void free_value(struct value *v) {
    while (v) {
        struct value *next = v->next;
        free_value(v->child);
        free(v->text);
        free(v->key);
        free(v);
        v = next;
    }
}

static void skip_space(struct reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r'))
        r->at++;
}

static int take(struct reader *r, const char *word) {
    size_t n = strlen(word);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n) != 0) return 0;
    r->at += n;
    return 1;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* One \uXXXX as UTF-8; 0 for what is no character (half a pair, NUL, a bad digit). */
static size_t read_unicode(struct reader *r, char *out) {
    unsigned code = 0;
    if (r->end - r->at < 4) return 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(*r->at++);
        if (digit < 0) return 0;
        code = code * 16 + (unsigned)digit;
    }
    if (code == 0 || (code >= 0xD800 && code <= 0xDFFF)) return 0;
    if (code < 0x80) { out[0] = (char)code; return 1; }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 63));
        return 2;
    }
    out[0] = (char)(0xE0 | code >> 12);
    out[1] = (char)(0x80 | (code >> 6 & 63));
    out[2] = (char)(0x80 | (code & 63));
    return 3;
}

static size_t read_escape(struct reader *r, char *out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *found;
    if (r->at == r->end || *r->at == 0) return 0;
    if (*r->at == 'u') { r->at++; return read_unicode(r, out); }
    found = strchr(from, *r->at++);
    if (!found) return 0;
    *out = to[found - from];
    return 1;
}

static char *read_text(struct reader *r) {
    char *text, *out;
    if (!take(r, "\"")) return NULL;
    text = out = malloc((size_t)(r->end - r->at) + 1); /* an escape is longer than what it means */
    if (!text) return NULL;
    while (r->at < r->end && *r->at != '"') {
        unsigned char c = (unsigned char)*r->at++;
        size_t wrote = 1;
        if (c == '\\') wrote = read_escape(r, out);
        else if (c < 0x20) wrote = 0;
        else *out = (char)c;
        if (wrote == 0) { free(text); return NULL; }
        out += wrote;
    }
    *out = 0;
    if (!take(r, "\"")) { free(text); return NULL; }
    return text;
}

static int digits(struct reader *r, unsigned long long *number) {
    int count = 0;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++, count++) {
        if (*number > 900000000000000000ull) return 0;
        *number = *number * 10 + (unsigned)(*r->at - '0');
    }
    return count;
}

static int read_number(struct reader *r, struct value *v) {
    unsigned long long whole = 0, rest = 0;
    int negative = take(r, "-"), leading_zero = r->at < r->end && *r->at == '0';
    int count = digits(r, &whole);
    if (count == 0 || (leading_zero && count > 1)) return 0;
    v->kind = INTEGER;
    v->integer = negative ? -(long long)whole : (long long)whole;
    if (take(r, ".")) { v->kind = REAL; if (!digits(r, &rest)) return 0; }
    if (take(r, "e") || take(r, "E")) {
        v->kind = REAL;
        rest = 0;
        if (!take(r, "+")) take(r, "-");
        if (!digits(r, &rest)) return 0;
    }
    return 1;
}

static int read_members(struct reader *r, struct value *v, const char *close) {
    struct value **last = &v->child;
    skip_space(r);
    if (take(r, close)) return 1;
    for (;;) {
        char *key = NULL;
        skip_space(r);
        if (v->kind == OBJECT) {
            key = read_text(r);
            if (!key) return 0;
            skip_space(r);
            if (!take(r, ":")) { free(key); return 0; }
        }
        *last = read_value(r);
        if (!*last) { free(key); return 0; }
        (*last)->key = key;
        last = &(*last)->next;
        skip_space(r);
        if (take(r, close)) return 1;
        if (!take(r, ",")) return 0;
    }
}

static int read_into(struct reader *r, struct value *v) {
    if (take(r, "null")) { v->kind = NUL; return 1; }
    if (take(r, "true")) { v->kind = BOOLEAN; v->integer = 1; return 1; }
    if (take(r, "false")) { v->kind = BOOLEAN; return 1; }
    if (take(r, "{")) { v->kind = OBJECT; return read_members(r, v, "}"); }
    if (take(r, "[")) { v->kind = ARRAY; return read_members(r, v, "]"); }
    if (r->at < r->end && *r->at == '"') {
        v->kind = STRING;
        v->text = read_text(r);
        return v->text != NULL;
    }
    return read_number(r, v);
}

static struct value *read_value(struct reader *r) {
    struct value *v = calloc(1, sizeof *v);
    if (!v) return NULL;
    skip_space(r);
    r->depth++;
    if (r->depth > MAX_DEPTH || !read_into(r, v)) { free_value(v); return NULL; }
    r->depth--;
    return v;
}

static struct value *read_document(const char *text, size_t length) {
    struct reader r = { text, text + length, 0 };
    struct value *v = read_value(&r);
    skip_space(&r);
    if (v && (r.at != r.end || v->kind != OBJECT)) { free_value(v); return NULL; }
    return v;
}

/* ---- the state ------------------------------------------------------------------------------ */

struct process { unsigned pid; char name[TEXT]; unsigned long long used; };

struct card {
    char name[TEXT], uuid[TEXT], bus[TEXT];
    unsigned domain, bus_number, device, pci_id;
    int has_memory, has_capability, has_mig, has_power, has_temperature;
    unsigned long long total, used, reserved;
    int major, minor;
    unsigned mig, power, power_min, power_max, persistence, temperature;
    int process_count;
    struct process processes[MAX_PROCESSES];
};

struct state {
    char driver[TEXT];
    int cuda, init_error, cu_init, hmm_fault, card_count;
    struct card cards[MAX_CARDS];
};

static const struct value *member(const struct value *v, const char *key) {
    for (const struct value *m = v->child; m; m = m->next)
        if (strcmp(m->key, key) == 0) return m->kind == NUL ? NULL : m;
    return NULL;
}

/* Each of these is 1 for "there", 0 for "absent or null", -1 for "of the wrong kind". */
static int get_text(const struct value *v, const char *key, char *out) {
    const struct value *m = member(v, key);
    if (!m) return 0;
    if (m->kind != STRING || strlen(m->text) >= TEXT) return -1;
    strcpy(out, m->text);
    return 1;
}

static int get_number(const struct value *v, const char *key, unsigned long long *out) {
    const struct value *m = member(v, key);
    if (!m) return 0;
    if (m->kind != INTEGER || m->integer < 0) return -1;
    *out = (unsigned long long)m->integer;
    return 1;
}

static int get_unsigned(const struct value *v, const char *key, unsigned *out) {
    unsigned long long number = 0;
    int got = get_number(v, key, &number);
    if (got == 1 && number > 0xFFFFFFFFull) return -1;
    if (got == 1) *out = (unsigned)number;
    return got;
}

static int get_hex(const char **at, unsigned *out) {
    int count = 0, digit;
    *out = 0;
    for (; count < 8 && (digit = hex_digit(**at)) >= 0; (*at)++, count++)
        *out = *out * 16 + (unsigned)digit;
    return count > 0;
}

/* "00000000:01:00.0" as NVML writes it */
static int read_bus(struct card *c) {
    const char *at = c->bus;
    unsigned function;
    return get_hex(&at, &c->domain) && *at++ == ':' && get_hex(&at, &c->bus_number)
        && *at++ == ':' && get_hex(&at, &c->device) && *at++ == '.' && get_hex(&at, &function)
        && *at == 0 && strlen(c->bus) < 32;
}

/* "10de:2bb1" as lspci writes it; NVML puts the device above the vendor. */
static int read_pci_id(const struct value *v, struct card *c) {
    char text[TEXT];
    const char *at = text;
    unsigned vendor, device;
    int got = get_text(v, "pci_device_id", text);
    if (got < 1) return got == 0;
    if (!get_hex(&at, &vendor) || *at++ != ':' || !get_hex(&at, &device) || *at) return 0;
    c->pci_id = device << 16 | vendor;
    return 1;
}

static int read_processes(const struct value *v, struct card *c) {
    const struct value *list = member(v, "processes");
    if (!list) return 1;
    if (list->kind != ARRAY) return 0;
    for (const struct value *p = list->child; p; p = p->next) {
        struct process *out = &c->processes[c->process_count];
        unsigned long long mib = 0;
        int got;
        if (p->kind != OBJECT || c->process_count == MAX_PROCESSES) return 0;
        if (get_unsigned(p, "pid", &out->pid) != 1 || get_text(p, "name", out->name) != 1) return 0;
        got = get_number(p, "used_mib", &mib);
        if (got < 0) return 0;
        out->used = got ? mib * MIB : ~0ull; /* NVML_VALUE_NOT_AVAILABLE */
        c->process_count++;
    }
    return 1;
}

static int read_capability(const struct value *v, struct card *c) {
    const struct value *list = member(v, "capability"), *minor;
    if (!list) return 1;
    if (list->kind != ARRAY || !list->child) return 0;
    minor = list->child->next;
    if (!minor || minor->next || list->child->kind != INTEGER || minor->kind != INTEGER) return 0;
    c->major = (int)list->child->integer;
    c->minor = (int)minor->integer;
    c->has_capability = 1;
    return 1;
}

static int read_mig(const struct value *v, struct card *c) {
    char text[TEXT];
    int got = get_text(v, "mig", text);
    if (got < 1) return got == 0;
    c->has_mig = 1;
    c->mig = strcmp(text, "enabled") == 0;
    return c->mig || strcmp(text, "disabled") == 0;
}

static int read_memory(const struct value *v, struct card *c) {
    if ((c->has_memory = get_number(v, "memory_mib", &c->total)) < 0) return 0;
    if (get_number(v, "used_mib", &c->used) < 0) return 0;
    if (get_number(v, "reserved_mib", &c->reserved) < 0) return 0;
    if (c->has_memory && c->used + c->reserved > c->total) return 0;
    c->total *= MIB;
    c->used *= MIB;
    c->reserved *= MIB;
    return 1;
}

static int read_power(const struct value *v, struct card *c) {
    const struct value *on = member(v, "persistence");
    if (on && on->kind != BOOLEAN) return 0;
    c->persistence = on && on->integer;
    if ((c->has_power = get_unsigned(v, "power_limit_mw", &c->power)) < 0) return 0;
    c->power_min = c->power_max = c->power;
    if (get_unsigned(v, "power_limit_min_mw", &c->power_min) < 0) return 0;
    if (get_unsigned(v, "power_limit_max_mw", &c->power_max) < 0) return 0;
    return (c->has_temperature = get_unsigned(v, "temperature_c", &c->temperature)) >= 0;
}

static int read_card(const struct value *v, struct card *c) {
    return v->kind == OBJECT && get_text(v, "name", c->name) == 1
        && get_text(v, "uuid", c->uuid) == 1 && get_text(v, "pci_bus_id", c->bus) == 1
        && read_bus(c) && read_pci_id(v, c) && read_memory(v, c) && read_capability(v, c)
        && read_mig(v, c) && read_power(v, c) && read_processes(v, c);
}

/* "13.0" as nvidia-smi shows it → 13000; null is the library's own */
static int read_cuda(const struct value *v, struct state *s) {
    char text[TEXT] = CUDA_VERSION, *at = text;
    int part[2] = { 0, 0 };
    if (get_text(v, "cuda_version", text) < 0) return 0;
    for (int i = 0; i < 2; i++) {
        if (*at < '0' || *at > '9') return 0;
        while (*at >= '0' && *at <= '9' && part[i] < 1000) part[i] = part[i] * 10 + (*at++ - '0');
        if (i == 0 && *at++ != '.') return 0;
    }
    s->cuda = part[0] * 1000 + part[1] * 10;
    return *at == 0;
}

/* A fault to answer with: absent or null is none. */
static int read_code(const struct value *v, const char *key, int *out) {
    unsigned code = 0;
    if (get_unsigned(v, key, &code) < 0 || code > 999) return 0;
    *out = (int)code;
    return 1;
}

/* "driver_version" null: the version of the loaded module, which is in s->driver already. */
static int read_state(const struct value *v, struct state *s) {
    const struct value *cards = member(v, "cards"), *hmm = member(v, "hmm_fault");
    if (get_text(v, "driver_version", s->driver) < 0 || !read_cuda(v, s)) return 0;
    if (!read_code(v, "init_error", &s->init_error) || !read_code(v, "cu_init", &s->cu_init))
        return 0;
    if (hmm && hmm->kind != BOOLEAN) return 0;
    s->hmm_fault = hmm && hmm->integer;
    if (!cards || cards->kind != ARRAY) return 0;
    for (const struct value *c = cards->child; c; c = c->next) {
        if (s->card_count == MAX_CARDS || !read_card(c, &s->cards[s->card_count])) return 0;
        s->card_count++;
    }
    return 1;
}

/* What this boot adds: whether the module can drive the cards, and what nvidia-smi has set. */
static int read_boot(const struct value *v, struct state *s) {
    const struct value *usable = member(v, "usable");
    const struct value *power = member(v, "power_limit_mw"), *kept = member(v, "persistence");
    if (usable && usable->kind == BOOLEAN && !usable->integer) s->card_count = 0;
    for (int i = 0; i < s->card_count; i++) {
        struct card *c = &s->cards[i];
        const struct value *on = kept ? member(kept, c->uuid) : NULL;
        if (on && on->kind != BOOLEAN) return 0;
        if (on) c->persistence = on->integer != 0;
        if (power && get_unsigned(power, c->uuid, &c->power) < 0) return 0;
    }
    return 1;
}

static ssize_t read_file(const char *path, char *buffer, size_t size) {
    size_t length = 0;
    ssize_t got = 1;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -1;
    while (length < size && (got = read(file, buffer + length, size - length)) > 0)
        length += (size_t)got;
    close(file);
    return got < 0 ? -1 : (ssize_t)length;
}

/* The first line of a small file; 0 without the file. */
static int read_line(const char *path, char *out) {
    ssize_t length = read_file(path, out, TEXT - 1);
    if (length < 0) return 0;
    out[length] = 0;
    out[strcspn(out, "\n")] = 0;
    return 1;
}

/* Each of these is 1 for "read", 0 for "no such file", -1 for "can't be understood". */
static int read_json(const char *path, int (*into)(const struct value *, struct state *),
                     struct state *s) {
    char *text = malloc(MAX_FILE);
    struct value *document = NULL;
    ssize_t length = text ? read_file(path, text, MAX_FILE) : 0;
    int got = -1;
    if (length < 0) got = 0;
    else if (length > 0 && length < MAX_FILE) document = read_document(text, (size_t)length);
    if (document && into(document, s)) got = 1;
    free_value(document);
    free(text);
    return got;
}

static int read_machine(struct state *s) {
    int got = read_json(STATE_PATH, read_state, s);
    return got < 1 || read_json(BOOT_PATH, read_boot, s) >= 0 ? got : -1;
}
