/* A stand-in for libnvidia-ml.so.1, for tests. Its whole state is one mapped file (FAKE_NVML_STATE), which the test
 * changes while the library is in use. The layout is mirrored in state.py; sizes are checked there and here.
 * It exports what the probe calls and nothing else: a test compares the two lists.
 * WITHOUT_NEW leaves out what drivers before R535 and R570 lack. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_GPUS 16
#define NUM_LINKS 36
enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, TOO_SMALL = 7, TIMED_OUT = 10, LOST = 15, OS_ERROR = 17 };

/* Bits of `unsupported` and of `failing`, one per group of functions. */
enum {
    SERIAL = 1 << 0, TEMPERATURE = 1 << 1, MARGIN = 1 << 2, POWER = 1 << 3, ENERGY = 1 << 4, ECC = 1 << 5,
    REMAP = 1 << 6, MIG = 1 << 7, MEMORY_TEMPERATURE = 1 << 8, RECOVERY = 1 << 9, LINK_COUNTERS = 1 << 10,
    EVENTS = 1 << 11, PROCESSES = 1 << 12, REGISTRATION = 1 << 13, MODULE = 1 << 14, UTILISATION = 1 << 15,
    SRAM = 1 << 16, HISTOGRAM = 1 << 17, RETIRED = 1 << 18, UNREPAIRABLE = 1 << 19, INFOROM = 1 << 20,
    PERSISTENCE = 1 << 21, THRESHOLDS = 1 << 22, REMOTE = 1 << 23, FABRIC = 1 << 24, PLACES = 1 << 25,
    DURATIONS = 1 << 26, SYMBOLS = 1 << 27, AER = 1 << 28, GPM = 1 << 29, C2C = 1 << 30,
};
static const uint32_t LINK_BYTES = 1u << 31;

typedef struct {
    char uuid[96], name[96], serial[32];
    uint64_t memory_total, memory_used, energy_mj, clock_reasons;
    uint64_t ecc[4]; /* [error type * 2 + counter type] */
    uint64_t link_counters[5];
    uint64_t ecc_corrected[4]; /* [counter type * 2 + is DRAM] */
    uint64_t held_down_ns[3], correctable_errors, symbol_errors;
    uint64_t ill_link_errors; /* more of each counter, on ill_link alone */
    uint64_t c2c_errors[3];
    uint64_t link_bytes[2]; /* of each link: sent, received */
    double gpm[6];
    int32_t temperature, margin, memory_temperature;
    uint32_t power_mw, sm_clock, memory_clock, gpu_util, memory_util, num_processes;
    uint32_t remap[4], recovery_action, pcie_generation, pcie_width, pcie_replays;
    uint32_t num_links, links_up, mig_mode, ecc_mode, field_type;
    uint32_t is_lost, hang_ms, unsupported, failing, failure_code;
    uint32_t pending_xid, is_watched;
    uint32_t ill_link, sram_exceeded, remap_banks[5], retired[2], retired_pending, unrepairable, inforom_code;
    uint32_t num_validations, persistence, set_limit_mw, thresholds[4], pcie_max_generation, pcie_max_width;
    uint32_t links_to_nothing, fabric_state, fabric_status, fabric_health, fabric_clique, fabric_version;
    uint32_t fabric_cluster, link_mb_per_s, vbios_build, application_clock;
    uint32_t pending_change, registered, event_types, unheard_types, num_gpm_samples, num_gpm_kept;
    uint32_t repairs[2], p2p_status, ill_ber; /* the status of each of its pairs, if it is not OK; the BER of ill_link */
} Gpu;

typedef struct {
    uint32_t size_of_gpu, init_code, num_gpus, reserved;
    Gpu gpus[MAX_GPUS];
} State;

static State *state;

static void pause_ms(uint32_t ms) {
    struct timespec span = {ms / 1000, (ms % 1000) * 1000000L};
    nanosleep(&span, NULL);
}

static int open_state(void) {
    if (state) return OK;
    const char *path = getenv("FAKE_NVML_STATE");
    int file = path ? open(path, O_RDWR) : -1;
    if (file < 0) return OS_ERROR;
    void *at = mmap(NULL, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (at == MAP_FAILED || ((State *)at)->size_of_gpu != sizeof(Gpu)) return OS_ERROR;
    state = at;
    return OK;
}

/* What each call about one GPU begins with: hang, lost, then what it does not support or fails at. */
static int enter(Gpu *gpu, uint32_t group) {
    if (!state) return 1;
    if (gpu < state->gpus || gpu >= state->gpus + MAX_GPUS) return INVALID;
    if (gpu->hang_ms) pause_ms(gpu->hang_ms);
    if (gpu->is_lost) return LOST;
    if (gpu->unsupported & group) return UNSUPPORTED;
    if (gpu->failing & group) return (int)gpu->failure_code;
    return OK;
}

#define ENTER(group) do { int code_ = enter(gpu, group); if (code_) return code_; } while (0)

static int text(char *to, unsigned size, const char *from) {
    if (strlen(from) + 1 > size) return TOO_SMALL;
    strcpy(to, from);
    return OK;
}

EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int code = open_state();
    return code ? code : (int)state->init_code;
}
EXPORT int nvmlShutdown(void) { return (int)state->init_code; }
EXPORT const char *nvmlErrorString(int code) { (void)code; return "an error of the fake"; }
EXPORT int nvmlSystemGetDriverVersion(char *to, unsigned size) { return text(to, size, "580.95.05"); }
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12080; return OK; }

EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    if (state->init_code) return (int)state->init_code;
    *count = state->num_gpus;
    return OK;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) {
    if (index >= state->num_gpus) return INVALID;
    *gpu = &state->gpus[index];
    return (*gpu)->is_lost ? LOST : OK;
}

EXPORT int nvmlDeviceGetUUID(Gpu *gpu, char *to, unsigned size) { ENTER(0); return text(to, size, gpu->uuid); }
EXPORT int nvmlDeviceGetName(Gpu *gpu, char *to, unsigned size) { ENTER(0); return text(to, size, gpu->name); }
EXPORT int nvmlDeviceGetSerial(Gpu *gpu, char *to, unsigned size) { ENTER(SERIAL); return text(to, size, gpu->serial); }
EXPORT int nvmlDeviceGetVbiosVersion(Gpu *gpu, char *to, unsigned size) {
    ENTER(0);
    char version[32];
    snprintf(version, sizeof version, "96.00.A5.00.%02u", gpu->vbios_build);
    return text(to, size, version);
}
EXPORT int nvmlDeviceGetGspFirmwareVersion(Gpu *gpu, char *to) { ENTER(0); return text(to, 64, "580.95.05"); }
EXPORT int nvmlDeviceGetInforomImageVersion(Gpu *gpu, char *to, unsigned size) {
    ENTER(0); return text(to, size, "G520.0200.00.05");
}
EXPORT int nvmlDeviceGetBoardPartNumber(Gpu *gpu, char *to, unsigned size) {
    ENTER(0); return text(to, size, "692-2G520-0200-000");
}
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} Pci;
EXPORT int nvmlDeviceGetPciInfo_v3(Gpu *gpu, Pci *pci) {
    ENTER(0);
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x10 + (unsigned)(gpu - state->gpus);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return OK;
}
EXPORT int nvmlDeviceGetModuleId(Gpu *gpu, unsigned *module) {
    ENTER(MODULE); *module = 1 + (unsigned)(gpu - state->gpus); return OK;
}
EXPORT int nvmlDeviceGetCudaComputeCapability(Gpu *gpu, int *major, int *minor) {
    ENTER(0); *major = 9; *minor = 0; return OK;
}
EXPORT int nvmlDeviceGetMigMode(Gpu *gpu, unsigned *current, unsigned *pending) {
    ENTER(MIG); *current = *pending = gpu->mig_mode; return OK;
}
EXPORT int nvmlDeviceGetEccMode(Gpu *gpu, unsigned *current, unsigned *pending) {
    ENTER(ECC); *current = *pending = gpu->ecc_mode; return OK;
}
EXPORT int nvmlDeviceGetEnforcedPowerLimit(Gpu *gpu, unsigned *mw) { ENTER(POWER); *mw = 700000; return OK; }
EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(Gpu *gpu, unsigned *mw) { ENTER(POWER); *mw = 700000; return OK; }
EXPORT int nvmlDeviceGetPowerManagementLimitConstraints(Gpu *gpu, unsigned *least, unsigned *most) {
    ENTER(POWER); *least = 200000; *most = 700000; return OK;
}

EXPORT int nvmlDeviceGetTemperature(Gpu *gpu, unsigned sensor, unsigned *degrees) {
    ENTER(TEMPERATURE); if (sensor) return INVALID; *degrees = (unsigned)gpu->temperature; return OK;
}
typedef struct { unsigned version, sensor; int degrees; } Temperature;
typedef struct { unsigned version; int degrees; } Margin;
#ifndef WITHOUT_NEW
EXPORT int nvmlDeviceGetTemperatureV(Gpu *gpu, Temperature *temperature) {
    ENTER(TEMPERATURE);
    if (temperature->version != 0x100000C) return 25;
    if (temperature->sensor) return INVALID;
    temperature->degrees = gpu->temperature;
    return OK;
}
EXPORT int nvmlDeviceGetMarginTemperature(Gpu *gpu, Margin *margin) {
    ENTER(MARGIN);
    if (margin->version != 0x1000008) return 25;
    margin->degrees = gpu->margin;
    return OK;
}
EXPORT int nvmlDeviceGetCurrentClocksEventReasons(Gpu *gpu, unsigned long long *bits) {
    ENTER(0); *bits = gpu->clock_reasons; return OK;
}
#endif
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu *gpu, unsigned long long *bits) {
    ENTER(0); *bits = gpu->clock_reasons; return OK;
}
EXPORT int nvmlDeviceGetPowerUsage(Gpu *gpu, unsigned *mw) { ENTER(POWER); *mw = gpu->power_mw; return OK; }
EXPORT int nvmlDeviceGetTotalEnergyConsumption(Gpu *gpu, unsigned long long *mj) {
    ENTER(ENERGY); *mj = gpu->energy_mj; return OK;
}
EXPORT int nvmlDeviceGetClockInfo(Gpu *gpu, unsigned clock, unsigned *mhz) {
    ENTER(0); *mhz = clock == 2 ? gpu->memory_clock : gpu->sm_clock; return OK;
}
EXPORT int nvmlDeviceGetApplicationsClock(Gpu *gpu, unsigned clock, unsigned *mhz) {
    ENTER(0); *mhz = clock == 2 ? gpu->memory_clock : gpu->application_clock; return OK;
}
EXPORT int nvmlDeviceGetDefaultApplicationsClock(Gpu *gpu, unsigned clock, unsigned *mhz) {
    ENTER(0); *mhz = clock == 2 ? gpu->memory_clock : 1980; return OK;
}
typedef struct { unsigned gpu, memory; } Utilisation;
EXPORT int nvmlDeviceGetUtilizationRates(Gpu *gpu, Utilisation *rates) {
    ENTER(UTILISATION); rates->gpu = gpu->gpu_util; rates->memory = gpu->memory_util; return OK;
}
typedef struct { unsigned long long total, free, used; } Memory;
EXPORT int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *memory) {
    ENTER(0);
    memory->total = gpu->memory_total; memory->used = gpu->memory_used;
    memory->free = memory->total - memory->used;
    return OK;
}
#ifndef WITHOUT_NEW
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
EXPORT int nvmlDeviceGetMemoryInfo_v2(Gpu *gpu, Memory2 *memory) {
    ENTER(0);
    if (memory->version != 0x2000028) return 25;
    memory->total = gpu->memory_total; memory->reserved = 0; memory->used = gpu->memory_used;
    memory->free = memory->total - memory->used;
    return OK;
}
#endif
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Process;
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *processes) {
    ENTER(PROCESSES);
    unsigned room = *count;
    *count = gpu->num_processes;
    if (!gpu->num_processes) return OK;
    if (room < gpu->num_processes || !processes) return TOO_SMALL;
    for (unsigned i = 0; i < gpu->num_processes; i++) processes[i] = (Process){1000 + i, 1 << 20, 0, 0};
    return OK;
}
EXPORT int nvmlDeviceGetTotalEccErrors(Gpu *gpu, unsigned error, unsigned counter, unsigned long long *count) {
    ENTER(ECC); if (error > 1 || counter > 1) return INVALID; *count = gpu->ecc[error * 2 + counter]; return OK;
}
EXPORT int nvmlDeviceGetRemappedRows(Gpu *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                     unsigned *failure) {
    ENTER(REMAP);
    *corrected = gpu->remap[0]; *uncorrected = gpu->remap[1]; *pending = gpu->remap[2]; *failure = gpu->remap[3];
    return OK;
}
EXPORT int nvmlDeviceGetCurrPcieLinkGeneration(Gpu *gpu, unsigned *at) { ENTER(0); *at = gpu->pcie_generation; return OK; }
EXPORT int nvmlDeviceGetCurrPcieLinkWidth(Gpu *gpu, unsigned *at) { ENTER(0); *at = gpu->pcie_width; return OK; }
EXPORT int nvmlDeviceGetPcieReplayCounter(Gpu *gpu, unsigned *at) { ENTER(0); *at = gpu->pcie_replays; return OK; }

EXPORT int nvmlDeviceGetNvLinkState(Gpu *gpu, unsigned link, unsigned *is_up) {
    ENTER(0);
    if (!gpu->num_links) return UNSUPPORTED;
    if (link >= gpu->num_links) return INVALID;
    *is_up = link < gpu->links_up;
    return OK;
}
EXPORT int nvmlDeviceGetNvLinkErrorCounter(Gpu *gpu, unsigned link, unsigned counter, unsigned long long *count) {
    ENTER(LINK_COUNTERS);
    if (link >= gpu->num_links || counter > 4) return INVALID;
    if (link >= gpu->links_up) return UNSUPPORTED;
    *count = gpu->link_counters[counter] + (link == gpu->ill_link ? gpu->ill_link_errors : 0);
    return OK;
}

EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(Gpu *gpu, unsigned link, unsigned *type) {
    ENTER(REMOTE);
    if (link >= gpu->links_up) return INVALID;
    *type = link < gpu->links_to_nothing ? 255 : 2;
    return OK;
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(Gpu *gpu, unsigned link, Pci *pci) {
    ENTER(REMOTE);
    if (link >= gpu->links_up) return INVALID;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", 4 + link % 4);
    return OK;
}

EXPORT int nvmlDeviceGetP2PStatus(Gpu *gpu, Gpu *other, unsigned index, unsigned *status) {
    ENTER(0);
    if (other->is_lost) return LOST;
    if (index) return INVALID;
    *status = gpu->p2p_status ? gpu->p2p_status : other->p2p_status;
    return OK;
}

/* What seldom moves. */
#ifndef WITHOUT_NEW
typedef struct { unsigned version, channel, tpc; } Repairs;
EXPORT int nvmlDeviceGetRepairStatus(Gpu *gpu, Repairs *repairs) {
    ENTER(UNREPAIRABLE);
    if (repairs->version != 0x100000C) return 25;
    repairs->channel = gpu->repairs[0]; repairs->tpc = gpu->repairs[1];
    return OK;
}
typedef struct { unsigned version; unsigned long long counts[11]; unsigned is_exceeded; } Sram;
EXPORT int nvmlDeviceGetSramEccErrorStatus(Gpu *gpu, Sram *status) {
    ENTER(SRAM);
    if (status->version != 0x1000068) return 25;
    status->is_exceeded = gpu->sram_exceeded;
    return OK;
}
typedef struct { unsigned version, is_unrepairable; } Unrepairable;
EXPORT int nvmlDeviceGetUnrepairableMemoryFlag_v1(Gpu *gpu, Unrepairable *flag) {
    ENTER(UNREPAIRABLE);
    if (flag->version != 0x1000008) return 25;
    flag->is_unrepairable = gpu->unrepairable;
    return OK;
}
#endif
EXPORT int nvmlDeviceGetRowRemapperHistogram(Gpu *gpu, uint32_t *banks) {
    ENTER(HISTOGRAM); memcpy(banks, gpu->remap_banks, sizeof gpu->remap_banks); return OK;
}
EXPORT int nvmlDeviceGetRetiredPages(Gpu *gpu, unsigned cause, unsigned *count, unsigned long long *pages) {
    ENTER(RETIRED);
    if (cause > 1) return INVALID;
    unsigned room = *count;
    *count = gpu->retired[cause];
    if (*count && (!pages || room < *count)) return TOO_SMALL;
    for (unsigned i = 0; i < *count; i++) pages[i] = 0x1000 * i;
    return OK;
}
EXPORT int nvmlDeviceGetRetiredPagesPendingStatus(Gpu *gpu, unsigned *is) { ENTER(RETIRED); *is = gpu->retired_pending; return OK; }
EXPORT int nvmlDeviceValidateInforom(Gpu *gpu) { ENTER(INFOROM); gpu->num_validations++; return (int)gpu->inforom_code; }
EXPORT int nvmlDeviceGetPersistenceMode(Gpu *gpu, unsigned *is) { ENTER(PERSISTENCE); *is = gpu->persistence; return OK; }
EXPORT int nvmlDeviceGetPowerManagementLimit(Gpu *gpu, unsigned *mw) { ENTER(POWER); *mw = gpu->set_limit_mw; return OK; }
EXPORT int nvmlDeviceGetTemperatureThreshold(Gpu *gpu, unsigned which, unsigned *degrees) {
    ENTER(THRESHOLDS); if (which > 3) return INVALID; *degrees = gpu->thresholds[which]; return OK;
}
EXPORT int nvmlDeviceGetMaxPcieLinkGeneration(Gpu *gpu, unsigned *at) { ENTER(0); *at = gpu->pcie_max_generation; return OK; }
EXPORT int nvmlDeviceGetMaxPcieLinkWidth(Gpu *gpu, unsigned *at) { ENTER(0); *at = gpu->pcie_max_width; return OK; }
EXPORT int nvmlDeviceGetMemoryErrorCounter(Gpu *gpu, unsigned error, unsigned counter, unsigned place,
                                           unsigned long long *count) {
    ENTER(PLACES);
    if (error || counter > 1 || (place != 2 && place != 7)) return INVALID;
    *count = gpu->ecc_corrected[counter * 2 + (place == 2)];
    return OK;
}
typedef struct {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state; /* as in nvml.h; what follows begins at a multiple of four */
    unsigned health;
    unsigned char summary;
} Fabric;
EXPORT int nvmlDeviceGetGpuFabricInfoV(Gpu *gpu, Fabric *info) {
    ENTER(FABRIC);
    if (info->version >> 24 > gpu->fabric_version || (info->version & 0xFFFFFF) != (info->version >> 24 == 3 ? 40 : 36)) return 25;
    info->status = gpu->fabric_status;
    info->clique = gpu->fabric_clique;
    for (int i = 0; i < 4; i++) info->cluster[12 + i] = (unsigned char)(gpu->fabric_cluster >> (24 - 8 * i));
    info->state = (unsigned char)gpu->fabric_state;
    info->health = gpu->fabric_health;
    return OK;
}

typedef struct {
    uint32_t id, scope;
    int64_t timestamp, latency;
    uint32_t type, code;
    union { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; int si; unsigned short us; } value;
} Field;
static void field_value(Gpu *gpu, Field *field) {
    uint32_t group = field->id == 82 ? MEMORY_TEMPERATURE : field->id == 230 ? RECOVERY : field->id >= 220 && field->id <= 222 ? SYMBOLS
        : field->id >= 231 && field->id <= 233 ? C2C : field->id == 173 ? AER : field->id >= 269 && field->id <= 271 ? DURATIONS : 0;
    field->code = gpu->unsupported & group ? UNSUPPORTED : gpu->failing & group ? gpu->failure_code : OK;
    field->type = gpu->field_type;
    field->value.ull = 0;
    unsigned long long number = 0;
    if (field->id == 82) number = (unsigned long long)gpu->memory_temperature;
    else if (field->id == 90) number = gpu->link_mb_per_s;
    else if (field->id == 230) number = gpu->recovery_action;
    else if (field->id == 208) number = gpu->link_counters[2];
    else if (field->id == 295) number = gpu->link_counters[0];
    else if (field->id == 215) number = gpu->link_counters[1];
    else if (field->id == 221) number = gpu->symbol_errors;
    else if (field->id == 220 || field->id == 222) number = field->scope == gpu->ill_link && gpu->ill_ber ? gpu->ill_ber : 0x50f;
    else if (field->id >= 231 && field->id <= 233) number = gpu->c2c_errors[field->id - 231];
    else if (field->id == 138 || field->id == 139) number = gpu->link_bytes[field->id - 138] / 1024;
    else if (field->id == 202 || field->id == 204) number = gpu->link_bytes[(field->id - 202) / 2];
    else if (field->id == 173) number = gpu->correctable_errors;
    else if (field->id >= 269 && field->id <= 271) number = gpu->held_down_ns[field->id - 269];
    else field->code = INVALID;
    int is_link_5 = field->id == 208 || field->id == 215 || field->id == 295;
    if (is_link_5 && !(gpu->unsupported & LINK_COUNTERS)) field->code = UNSUPPORTED;
    int are_bytes_of_link_5 = field->id == 202 || field->id == 204;
    int are_bytes = are_bytes_of_link_5 || field->id == 138 || field->id == 139;
    if (are_bytes && (gpu->unsupported & LINK_BYTES || are_bytes_of_link_5 == !(gpu->unsupported & LINK_COUNTERS))) field->code = UNSUPPORTED;
    if (field->type == 0) field->value.d = (double)number;
    else if (field->type == 6) field->value.us = (unsigned short)number;
    else field->value.ull = number;
}
EXPORT int nvmlDeviceGetFieldValues(Gpu *gpu, int count, Field *fields) {
    ENTER(0);
    for (int i = 0; i < count; i++) field_value(gpu, &fields[i]);
    return OK;
}

/* Profiling counters. A sample is of one GPU; what was counted is the GPU's as the second one is compared. */
#ifndef WITHOUT_NEW
typedef struct { Gpu *gpu; } GpmSample;
typedef struct { unsigned version, is_supported; } GpmSupport;
typedef struct { unsigned id; int code; double value; const char *words[3]; } GpmMetric;
typedef struct { unsigned version, count; GpmSample *first, *second; GpmMetric metrics[]; } GpmWindow;
EXPORT int nvmlGpmQueryDeviceSupport(Gpu *gpu, GpmSupport *support) {
    ENTER(0);
    if (support->version != 1) return 25;
    support->is_supported = !(gpu->unsupported & GPM);
    return OK;
}
EXPORT int nvmlGpmSampleAlloc(GpmSample **sample) { *sample = calloc(1, sizeof **sample); return OK; }
EXPORT int nvmlGpmSampleFree(GpmSample *sample) {
    if (sample->gpu) sample->gpu->num_gpm_kept--;
    free(sample);
    return OK;
}
EXPORT int nvmlGpmSampleGet(Gpu *gpu, GpmSample *sample) {
    ENTER(GPM);
    sample->gpu = gpu; gpu->num_gpm_samples++; gpu->num_gpm_kept++;
    return OK;
}
EXPORT int nvmlGpmMetricsGet(GpmWindow *window) {
    static const unsigned ids[] = {2, 10, 20, 21, 60, 61};
    if (window->version != 1) return 25;
    Gpu *gpu = window->first->gpu;
    if (!gpu || gpu != window->second->gpu) return INVALID;
    for (unsigned i = 0; i < window->count; i++) {
        GpmMetric *metric = &window->metrics[i];
        metric->code = UNSUPPORTED;
        for (unsigned at = 0; at < sizeof ids / sizeof *ids; at++)
            if (metric->id == ids[at]) { metric->code = OK; metric->value = gpu->gpm[at]; }
        if (metric->id >= 60 && !gpu->num_links) metric->code = UNSUPPORTED;
    }
    return OK;
}
#endif

EXPORT int nvmlEventSetCreate(void **set) { *set = state; return OK; }
EXPORT int nvmlEventSetFree(void *set) { (void)set; return (int)state->init_code; }
EXPORT int nvmlDeviceGetSupportedEventTypes(Gpu *gpu, unsigned long long *types) {
    ENTER(EVENTS); *types = gpu->event_types; return OK;
}
EXPORT int nvmlDeviceRegisterEvents(Gpu *gpu, unsigned long long types, void *set) {
    (void)set; ENTER(REGISTRATION);
    if (types & gpu->unheard_types) return INVALID;
    gpu->is_watched = (types & 8) != 0; gpu->registered = (uint32_t)types; return OK;
}
typedef struct { Gpu *gpu; unsigned long long type, data; unsigned instance, compute; } Event;
EXPORT int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout_ms) {
    (void)set;
    for (unsigned waited = 0; waited <= timeout_ms; waited += 5) {
        for (unsigned i = 0; i < MAX_GPUS; i++) {
            Gpu *gpu = &state->gpus[i];
            uint32_t change = gpu->pending_change & gpu->registered;
            if (change) {
                __atomic_and_fetch(&gpu->pending_change, ~change, __ATOMIC_SEQ_CST);
                *event = (Event){gpu, change, 0, 0, 0};
                return OK;
            }
            uint32_t xid = gpu->is_watched ? __atomic_exchange_n(&gpu->pending_xid, 0, __ATOMIC_SEQ_CST) : 0;
            if (!xid) continue;
            *event = (Event){gpu, 8, xid, 0, 0};
            return OK;
        }
        pause_ms(5);
    }
    return TIMED_OUT;
}
