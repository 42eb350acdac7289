/* The runtime: devices, memory, copies, streams and events, in the table of dipu_runtime.h.
 *
 * A device address is one that the host cannot read: the kernels add a constant to it, which gives
 * the bytes. A stream runs its work synchronously, so it is always complete. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>

#include "chip.h"

#define CAPACITY ((size_t)4 << 30)
#define PIECES 4096
#define PAGE ((size_t)4096)

static _Thread_local char error_text[512];

int chip_error(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error_text, sizeof error_text, format, arguments);
    va_end(arguments);
    return DIPU_ERROR;
}

static const char* last_error(void) { return error_text; }

/* --- memory: pieces of one range per device, in the order of their addresses ------------------ */

typedef struct {
    size_t start, bytes;
} Piece;

typedef struct {
    char* shown;  /* the addresses for the program: not readable */
    char* hidden; /* the bytes */
    Piece pieces[PIECES];
    int count;
    size_t used;
} Device;

static Device devices[DROPLET_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void* chip_memory(const void* address) {
    for (int i = 0; i < DROPLET_DEVICES; ++i) {
        size_t offset = (size_t)((const char*)address - devices[i].shown);
        if (devices[i].shown && offset < CAPACITY) return devices[i].hidden + offset;
    }
    return (void*)(uintptr_t)address;
}

static int open_device(Device* device) {
    if (device->shown) return DIPU_OK;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char* hidden = mmap(NULL, CAPACITY, PROT_READ | PROT_WRITE, flags, -1, 0);
    char* shown = mmap(NULL, CAPACITY, PROT_NONE, flags, -1, 0);
    if (hidden == MAP_FAILED || shown == MAP_FAILED) return chip_error("no room for a device");
    device->hidden = hidden;
    device->shown = shown;
    return DIPU_OK;
}

static int memory_allocate(int device, size_t bytes, void** out) {
    Device* chip = &devices[device];
    bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    pthread_mutex_lock(&lock);
    int status = open_device(chip), at = 0;
    size_t start = 0;
    while (at < chip->count && chip->pieces[at].start - start < bytes) {
        start = chip->pieces[at].start + chip->pieces[at].bytes;
        ++at;
    }
    if (status == DIPU_OK && (start + bytes > CAPACITY || chip->count == PIECES)) {
        chip_error("%zu bytes requested, %zu of %zu in use", bytes, chip->used, CAPACITY);
        status = DIPU_OUT_OF_MEMORY;
    }
    if (status == DIPU_OK) {
        memmove(chip->pieces + at + 1, chip->pieces + at,
                (size_t)(chip->count - at) * sizeof(Piece));
        chip->pieces[at] = (Piece){start, bytes};
        ++chip->count;
        chip->used += bytes;
        *out = chip->shown + start;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static int memory_free(int device, void* address) {
    Device* chip = &devices[device];
    size_t start = (size_t)((char*)address - chip->shown);
    int status = chip_error("%p is freed twice, or was never allocated", address);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < chip->count; ++i) {
        if (chip->pieces[i].start != start) continue;
        chip->used -= chip->pieces[i].bytes;
        madvise(chip->hidden + start, chip->pieces[i].bytes, MADV_DONTNEED);
        --chip->count;
        memmove(chip->pieces + i, chip->pieces + i + 1,
                (size_t)(chip->count - i) * sizeof(Piece));
        status = DIPU_OK;
        break;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static int memory_info(int device, size_t* free_bytes, size_t* total_bytes) {
    *total_bytes = CAPACITY;
    *free_bytes = CAPACITY - devices[device].used;
    return DIPU_OK;
}

static int memory_copy(const DipuCopy* copy) {
    memmove(chip_memory(copy->dst), chip_memory(copy->src), copy->bytes);
    return DIPU_OK;
}

static int host_allocate(size_t bytes, void** out) {
    *out = aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
    return *out ? DIPU_OK : DIPU_OUT_OF_MEMORY;
}

static int host_free(void* address) {
    free(address);
    return DIPU_OK;
}

/* --- devices ----------------------------------------------------------------------------------- */

static int device_count(int* count) {
    *count = DROPLET_DEVICES;
    return DIPU_OK;
}

static int device_info(int device, DipuDeviceInfo* info) {
    (void)device;
    snprintf(info->name, sizeof info->name, "droplet (made up, on the CPU)");
    info->total_memory = CAPACITY;
    info->major = 1;
    info->minor = 0;
    info->multiprocessors = 1;
    return DIPU_OK;
}

static int device_synchronize(int device) { return (void)device, DIPU_OK; }

static int entropy(int device, uint64_t* seed) {
    (void)device;
    return getrandom(seed, sizeof *seed, 0) == sizeof *seed ? DIPU_OK : DIPU_ERROR;
}

/* --- streams and events ------------------------------------------------------------------------ */

static int stream_create(int device, int priority, void** out) {
    (void)device, (void)priority;
    *out = malloc(1);
    return *out ? DIPU_OK : DIPU_OUT_OF_MEMORY;
}

static int stream_synchronize(int device, void* stream) {
    return (void)device, (void)stream, DIPU_OK;
}
static int stream_query(int device, void* stream) { return (void)device, (void)stream, DIPU_OK; }
static int stream_wait_event(int device, void* stream, void* event) {
    return (void)device, (void)stream, (void)event, DIPU_OK;
}

typedef struct {
    struct timespec when;
} Event;

static int event_create(int device, int timing, void** out) {
    (void)device, (void)timing;
    *out = calloc(1, sizeof(Event));
    return *out ? DIPU_OK : DIPU_OUT_OF_MEMORY;
}

static int event_destroy(int device, void* event) {
    (void)device;
    free(event);
    return DIPU_OK;
}

static int event_record(int device, void* event, void* stream) {
    (void)device, (void)stream;
    clock_gettime(CLOCK_MONOTONIC, &((Event*)event)->when);
    return DIPU_OK;
}

static int event_query(void* event) { return (void)event, DIPU_OK; }
static int event_synchronize(void* event) { return (void)event, DIPU_OK; }

static int event_elapsed(void* start, void* end, double* milliseconds) {
    struct timespec from = ((Event*)start)->when, to = ((Event*)end)->when;
    *milliseconds = (double)(to.tv_sec - from.tv_sec) * 1e3 +
                    (double)(to.tv_nsec - from.tv_nsec) / 1e6;
    return DIPU_OK;
}

static const DipuRuntime table = {
    .abi = DIPU_RUNTIME_ABI,
    .size = sizeof(DipuRuntime),
    .last_error = last_error,
    .device_count = device_count,
    .device_info = device_info,
    .device_synchronize = device_synchronize,
    .memory_allocate = memory_allocate,
    .memory_free = memory_free,
    .memory_info = memory_info,
    .memory_copy = memory_copy,
    .host_allocate = host_allocate,
    .host_free = host_free,
    .stream_create = stream_create,
    .stream_synchronize = stream_synchronize,
    .stream_query = stream_query,
    .stream_wait_event = stream_wait_event,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .event_synchronize = event_synchronize,
    .event_elapsed = event_elapsed,
    .entropy = entropy,
    .comm_id = group_id,
    .comm_create = group_create,
    .comm_destroy = group_destroy,
    .comm_abort = group_abort,
    .comm_query = group_query,
    .comm_begin = group_begin,
    .comm_end = group_end,
    .comm_all_reduce = group_all_reduce,
    .comm_broadcast = group_broadcast,
    .comm_reduce = group_reduce,
    .comm_all_gather = group_all_gather,
    .comm_reduce_scatter = group_reduce_scatter,
    .comm_send = group_send,
    .comm_receive = group_receive,
};

__attribute__((visibility("default"))) const DipuRuntime* dipu_runtime(void) { return &table; }
