/* An NVML for boxes without a GPU. Every answer comes from the emulated machine's files, read at
 * each nvmlInit (emulated_state.h).
 *
 * Without a loaded module, or without a card, it says what the real one says: the driver is not
 * loaded. A loaded module of another version than the library's is a mismatch, and a file that
 * can't be understood is NVML_ERROR_UNKNOWN, so that a mistake in a test shows.
 */
#include "emulated_state.h"

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, LIB_RM_VERSION_MISMATCH = 18,
    VERSION_MISMATCH = 25, UNKNOWN = 999
};

static struct state *current;
static int users;
static char handles[MAX_CARDS];

static int load(void) {
    struct state *fresh = calloc(1, sizeof *fresh);
    int answer = UNKNOWN, got;
    if (!fresh) return UNKNOWN;
    if (!read_line(LOADED_PATH, fresh->driver)) answer = DRIVER_NOT_LOADED;
    else if (strcmp(fresh->driver, DRIVER_VERSION) != 0) answer = LIB_RM_VERSION_MISMATCH;
    else if ((got = read_machine(fresh)) == 0) answer = DRIVER_NOT_LOADED;
    else if (got == 1) answer = fresh->init_error;
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
EXPORT int nvmlDeviceGetPowerUsage(device d, unsigned *out) {
    CARD(d);
    if (!c->has_power) return NOT_SUPPORTED;
    *out = c->power / 20; /* about what such a card draws at rest: nothing is computed here */
    return OK;
}
/* What an exporter asks beside that. The real card answers it; ours has no clocks to tell of. */
#define NOT_TOLD(name) EXPORT int name(device d) { CARD(d); (void)c; return NOT_SUPPORTED; }
NOT_TOLD(nvmlDeviceGetUtilizationRates)
NOT_TOLD(nvmlDeviceGetEncoderUtilization)
NOT_TOLD(nvmlDeviceGetDecoderUtilization)
NOT_TOLD(nvmlDeviceGetClockInfo)
NOT_TOLD(nvmlDeviceGetFanSpeed)
NOT_TOLD(nvmlDeviceGetPcieThroughput)
NOT_TOLD(nvmlDeviceGetFieldValues)
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
