/* An NVML for boxes without a GPU. Every answer comes from one JSON file, read at each nvmlInit:
 * settings by environment would be lost through sudo and systemd (NVIDIA facts, "Emulating it").
 * No file: the library says that no driver is loaded, as the real one does without its module.
 * A file that can't be understood answers NVML_ERROR_UNKNOWN, so that a mistake in a test shows.
 *
 * It is compiled on control and runs on older distributions: only old libc symbols are used
 * (no strtol or sscanf, which newer headers bind to symbols that Debian 12 lacks).
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef STATE_PATH
#define STATE_PATH "/var/lib/emulated-gpu/state.json"
#endif

#define EXPORT __attribute__((visibility("default")))
#define MIB (1024ull * 1024ull)
#define MAX_FILE (1 << 20)
#define MAX_DEPTH 32
#define MAX_CARDS 16
#define MAX_PROCESSES 64
#define TEXT 96

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, VERSION_MISMATCH = 25, UNKNOWN = 999
};

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
    int cuda, init_error, card_count;
    struct card cards[MAX_CARDS];
};

static struct state *current;
static int users;
static char handles[MAX_CARDS];

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

/* "13.0" as nvidia-smi shows it → 13000 */
static int read_cuda(const struct value *v, struct state *s) {
    char text[TEXT], *at = text;
    int part[2] = { 0, 0 };
    if (get_text(v, "cuda_version", text) != 1) return 0;
    for (int i = 0; i < 2; i++) {
        if (*at < '0' || *at > '9') return 0;
        while (*at >= '0' && *at <= '9' && part[i] < 1000) part[i] = part[i] * 10 + (*at++ - '0');
        if (i == 0 && *at++ != '.') return 0;
    }
    s->cuda = part[0] * 1000 + part[1] * 10;
    return *at == 0;
}

static int read_state(const struct value *v, struct state *s) {
    unsigned error = 0;
    const struct value *cards = member(v, "cards");
    if (get_text(v, "driver_version", s->driver) != 1 || !read_cuda(v, s)) return 0;
    if (get_unsigned(v, "init_error", &error) < 0 || error > 999) return 0;
    s->init_error = (int)error;
    if (!cards || cards->kind != ARRAY) return 0;
    for (const struct value *c = cards->child; c; c = c->next) {
        if (s->card_count == MAX_CARDS || !read_card(c, &s->cards[s->card_count])) return 0;
        s->card_count++;
    }
    return 1;
}

static ssize_t read_file(char *buffer, size_t size) {
    size_t length = 0;
    ssize_t got = 1;
    int file = open(STATE_PATH, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -1;
    while (length < size && (got = read(file, buffer + length, size - length)) > 0)
        length += (size_t)got;
    close(file);
    return got < 0 ? -1 : (ssize_t)length;
}

static int load(void) {
    struct state *fresh = calloc(1, sizeof *fresh);
    char *text = malloc(MAX_FILE);
    struct value *document = NULL;
    ssize_t length = fresh && text ? read_file(text, MAX_FILE) : 0;
    int answer = UNKNOWN;
    if (length < 0) answer = DRIVER_NOT_LOADED;
    else if (length > 0 && length < MAX_FILE) document = read_document(text, (size_t)length);
    if (document && read_state(document, fresh)) answer = fresh->init_error;
    free_value(document);
    free(text);
    /* The state that is replaced is left where it is: another thread may be reading it. */
    if (answer == OK) current = fresh;
    else free(fresh);
    return answer;
}

/* ---- NVML ------------------------------------------------------------------------------------ */

typedef char *device;
typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, pci_id, subsystem;
    char id[32];
} pci_info;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } process_info;
typedef struct { unsigned version, sensor; int degrees; } temperature_v1;

static int card_of(device d, const struct card **c) {
    if (!users) return UNINITIALIZED;
    for (int i = 0; i < current->card_count; i++)
        if (d == &handles[i]) { *c = &current->cards[i]; return OK; }
    return INVALID_ARGUMENT;
}

#define CARD(d) const struct card *c; int failed = card_of(d, &c); if (failed) return failed

static int give(const char *text, char *out, unsigned size) {
    if (!out) return INVALID_ARGUMENT;
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}

EXPORT int nvmlInitWithFlags(unsigned flags) {
    int failed = load();
    (void)flags;
    if (!failed) users++;
    return failed;
}
EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlInit(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlShutdown(void) {
    if (!users) return UNINITIALIZED;
    users--;
    return OK;
}

EXPORT const char *nvmlErrorString(int code) {
    static const char *const known[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported",
        "Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size",
        "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM",
        "GPU is lost", "GPU requires reset", "GPU access blocked by the operating system",
        /* NVIDIA facts, "Fault cases", row 1: what an unattended upgrade leaves behind */
        "Driver/library version mismatch", "In use by another client", "Insufficient Memory",
        "No data", "ECC is not supported on vGPU", "Insufficient resources",
        "Frequency not supported", "Argument version mismatch"
    };
    if (code >= 0 && code < (int)(sizeof known / sizeof *known)) return known[code];
    return "Unknown Error";
}

EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    return users ? give(current->driver, out, size) : UNINITIALIZED;
}
EXPORT int nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    /* "13.580.178.04": the CUDA major before the driver's version */
    char text[TEXT + 16];
    int major, at = 0;
    if (!users) return UNINITIALIZED;
    major = current->cuda / 1000;
    if (major > 9) text[at++] = (char)('0' + major / 10 % 10);
    text[at++] = (char)('0' + major % 10);
    text[at++] = '.';
    strcpy(text + at, current->driver);
    return give(text, out, size);
}
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    if (!users) return UNINITIALIZED;
    *out = current->cuda;
    return OK;
}
EXPORT int nvmlSystemGetCudaDriverVersion(int *out) {
    return nvmlSystemGetCudaDriverVersion_v2(out);
}
EXPORT int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
    if (!users) return UNINITIALIZED;
    for (int i = 0; i < current->card_count; i++)
        for (int p = 0; p < current->cards[i].process_count; p++)
            if (current->cards[i].processes[p].pid == pid)
                return give(current->cards[i].processes[p].name, out, size);
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *out) {
    if (!users) return UNINITIALIZED;
    *out = (unsigned)current->card_count;
    return OK;
}
EXPORT int nvmlDeviceGetCount(unsigned *out) { return nvmlDeviceGetCount_v2(out); }

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *out) {
    if (!users) return UNINITIALIZED;
    if (index >= (unsigned)current->card_count) return INVALID_ARGUMENT;
    *out = &handles[index];
    return OK;
}
EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, device *out) {
    return nvmlDeviceGetHandleByIndex_v2(index, out);
}
static int handle_where(size_t field, const char *wanted, device *out) {
    if (!users) return UNINITIALIZED;
    for (int i = 0; i < current->card_count; i++)
        if (strcmp((const char *)&current->cards[i] + field, wanted) == 0) {
            *out = &handles[i];
            return OK;
        }
    return NOT_FOUND;
}
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, device *out) {
    return handle_where(offsetof(struct card, uuid), uuid, out);
}
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device *out) {
    return handle_where(offsetof(struct card, bus), bus, out);
}
EXPORT int nvmlDeviceGetHandleByPciBusId(const char *bus, device *out) {
    return nvmlDeviceGetHandleByPciBusId_v2(bus, out);
}

EXPORT int nvmlDeviceGetIndex(device d, unsigned *out) {
    CARD(d);
    *out = (unsigned)(c - current->cards);
    return OK;
}
EXPORT int nvmlDeviceGetName(device d, char *out, unsigned size) {
    CARD(d);
    return give(c->name, out, size);
}
EXPORT int nvmlDeviceGetUUID(device d, char *out, unsigned size) {
    CARD(d);
    return give(c->uuid, out, size);
}
EXPORT int nvmlDeviceGetPciInfo_v3(device d, pci_info *out) {
    CARD(d);
    memset(out, 0, sizeof *out);
    strcpy(out->id, c->bus);
    if (strlen(c->bus) > 4) strncpy(out->legacy, c->bus + 4, sizeof out->legacy - 1);
    out->domain = c->domain;
    out->bus = c->bus_number;
    out->device = c->device;
    out->pci_id = c->pci_id;
    return OK;
}
EXPORT int nvmlDeviceGetPciInfo_v2(device d, pci_info *out) {
    return nvmlDeviceGetPciInfo_v3(d, out);
}
EXPORT int nvmlDeviceGetPciInfo(device d, pci_info *out) {
    return nvmlDeviceGetPciInfo_v3(d, out);
}

EXPORT int nvmlDeviceGetMemoryInfo(device d, memory_v1 *out) {
    CARD(d);
    if (!c->has_memory) return NOT_SUPPORTED;
    out->total = c->total;
    out->used = c->used + c->reserved; /* version 1 counts the reserved part as used */
    out->free = c->total - out->used;
    return OK;
}
EXPORT int nvmlDeviceGetMemoryInfo_v2(device d, memory_v2 *out) {
    CARD(d);
    if (out->version != (sizeof *out | 2u << 24)) return VERSION_MISMATCH;
    if (!c->has_memory) return NOT_SUPPORTED;
    out->total = c->total;
    out->reserved = c->reserved;
    out->used = c->used;
    out->free = c->total - c->used - c->reserved;
    return OK;
}
EXPORT int nvmlDeviceGetCudaComputeCapability(device d, int *major, int *minor) {
    CARD(d);
    if (!c->has_capability) return NOT_SUPPORTED;
    *major = c->major;
    *minor = c->minor;
    return OK;
}
EXPORT int nvmlDeviceGetMigMode(device d, unsigned *now, unsigned *pending) {
    CARD(d);
    if (!c->has_mig) return NOT_SUPPORTED;
    *now = *pending = c->mig;
    return OK;
}
EXPORT int nvmlDeviceGetPowerManagementLimit(device d, unsigned *out) {
    CARD(d);
    if (!c->has_power) return NOT_SUPPORTED;
    *out = c->power;
    return OK;
}
EXPORT int nvmlDeviceGetEnforcedPowerLimit(device d, unsigned *out) {
    return nvmlDeviceGetPowerManagementLimit(d, out);
}
EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(device d, unsigned *out) {
    CARD(d);
    if (!c->has_power) return NOT_SUPPORTED;
    *out = c->power_max;
    return OK;
}
EXPORT int nvmlDeviceGetPowerManagementLimitConstraints(device d, unsigned *min, unsigned *max) {
    CARD(d);
    if (!c->has_power) return NOT_SUPPORTED;
    *min = c->power_min;
    *max = c->power_max;
    return OK;
}
EXPORT int nvmlDeviceGetPersistenceMode(device d, unsigned *out) {
    CARD(d);
    *out = c->persistence;
    return OK;
}
EXPORT int nvmlDeviceGetTemperature(device d, unsigned sensor, unsigned *out) {
    CARD(d);
    if (sensor != 0) return INVALID_ARGUMENT;
    if (!c->has_temperature) return NOT_SUPPORTED;
    *out = c->temperature;
    return OK;
}
EXPORT int nvmlDeviceGetTemperatureV(device d, temperature_v1 *out) {
    unsigned degrees = 0;
    int failed = nvmlDeviceGetTemperature(d, out->sensor, &degrees);
    if (!failed) out->degrees = (int)degrees;
    return failed;
}

/* nvidia-ml-py raises NVMLLibraryMismatchError, no NVMLError, where this one is missing
 * (NVIDIA facts, "Emulating it"). */
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *count, process_info *out) {
    unsigned room = count ? *count : 0;
    CARD(d);
    if (!count) return INVALID_ARGUMENT;
    *count = (unsigned)c->process_count;
    if (c->process_count == 0) return OK;
    if (!out || room < *count) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++) {
        out[i].pid = c->processes[i].pid;
        out[i].used = c->processes[i].used;
        out[i].gpu = out[i].compute = ~0u; /* no MIG instance */
    }
    return OK;
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(device d, unsigned *count, process_info *out) {
    CARD(d);
    (void)out;
    if (!count) return INVALID_ARGUMENT;
    *count = 0;
    return OK;
}
