/* A libcuda for boxes without a GPU: cuInit answers as the emulated machine's driver would, and
 * there is nothing that could compute. Enough for a check that asks cuInit, and too little for a
 * framework to believe in a card: it finds no other entry point.
 */
#include "emulated_state.h"

#define UVM_NODE ROOT "/dev/nvidia-uvm"
#define HMM_OFF ROOT "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm"

enum {
    SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, NOT_FOUND = 500,
    SYSTEM_NOT_READY = 802, SYSTEM_DRIVER_MISMATCH = 803, UNKNOWN = 999
};

static const struct { int code; const char *name, *text; } codes[] = {
    { SUCCESS, "CUDA_SUCCESS", "no error" },
    { INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
    { NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error" },
    { NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected" },
    { NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
    { SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized" },
    { SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
      "system has unsupported display driver / cuda driver combination" },
    { UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error" }
};

static int initialized, card_count;

static int hidden(void) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return visible && (*visible == 0 || *visible == '-');
}

/* NVIDIA facts, "Fault cases": the codes 3 and 999 of the HMM fault, cured by its option; 802; the
 * missing /dev/nvidia-uvm. Which code a real driver gives for the last is not known: 999 is seen. */
static int init(const struct state *s) {
    char off[TEXT];
    if (hidden() || s->card_count == 0) return NO_DEVICE;
    if (access(UVM_NODE, F_OK) != 0) return UNKNOWN;
    if (s->hmm_fault && read_line(HMM_OFF, off) && *off == 'Y') return SUCCESS;
    return s->cu_init;
}

EXPORT int cuInit(unsigned flags) {
    struct state *s = calloc(1, sizeof *s);
    int answer = UNKNOWN, got = 1;
    if (flags || !s) { free(s); return flags ? INVALID_VALUE : UNKNOWN; }
    if (!read_line(LOADED_PATH, s->driver)) answer = NO_DEVICE;
    else if (strcmp(s->driver, DRIVER_VERSION) != 0) answer = SYSTEM_DRIVER_MISMATCH;
    else if ((got = read_machine(s)) == 0) answer = NO_DEVICE;
    else if (got == 1) answer = init(s);
    initialized = answer == SUCCESS;
    card_count = s->card_count;
    free(s);
    return answer;
}

/* The library's own CUDA: it is asked before cuInit as well. */
EXPORT int cuDriverGetVersion(int *out) {
    struct state s = { 0 };
    struct value nothing = { 0 };
    if (!out) return INVALID_VALUE;
    if (!read_cuda(&nothing, &s)) return UNKNOWN;
    *out = s.cuda;
    return SUCCESS;
}

static int named(int code, int words, const char **out) {
    if (!out) return INVALID_VALUE;
    *out = NULL;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].code == code) *out = words ? codes[i].text : codes[i].name;
    return *out ? SUCCESS : INVALID_VALUE;
}
EXPORT int cuGetErrorName(int code, const char **out) { return named(code, 0, out); }
EXPORT int cuGetErrorString(int code, const char **out) { return named(code, 1, out); }

EXPORT int cuDeviceGetCount(int *out) {
    if (!initialized) return NOT_INITIALIZED;
    if (!out) return INVALID_VALUE;
    *out = card_count;
    return SUCCESS;
}

EXPORT int cuGetProcAddress_v2(const char *name, void **out, int version, unsigned long long flags,
                               int *status) {
    (void)name;
    (void)version;
    (void)flags;
    if (out) *out = NULL;
    if (status) *status = 1; /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
    return NOT_FOUND;
}
