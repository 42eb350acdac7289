/* The communicator: processes of one machine, through a piece of shared memory.
 *
 * Each rank has a slot for its data, and each pair a mailbox; both are used in chunks. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "chip.h"
#include "diopi_runtime.h"

#define SLOT ((size_t)1 << 20)
#define LETTER ((size_t)1 << 16)
#define POSTED 64 /* sends and receives between begin and end */

typedef struct {
    _Atomic uint32_t full;
    uint32_t bytes;
    char data[LETTER];
} Mailbox;

typedef struct {
    _Atomic uint32_t arrived, turn, aborted, joined;
} Shared;

typedef struct {
    const DipuCollective call;
    bool sends;
    size_t done;
} Post;

typedef struct {
    Shared* shared;
    char* slots;        /* one of each rank */
    Mailbox* mailboxes; /* from rank * size + to rank */
    size_t bytes;
    int rank, size, collecting, posted;
    Post* posts[POSTED];
    char name[128];
} Group;

static const struct {
    int32_t dtype;
    size_t bytes;
} SIZES[] = {
    {diopi_dtype_float32, 4}, {diopi_dtype_float64, 8}, {diopi_dtype_bfloat16, 2},
    {diopi_dtype_float16, 2}, {diopi_dtype_int64, 8},   {diopi_dtype_int32, 4},
    {diopi_dtype_int16, 2},   {diopi_dtype_int8, 1},    {diopi_dtype_uint8, 1},
    {diopi_dtype_bool, 1},
};

static size_t size_of(int32_t dtype) {
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; ++i) {
        if (SIZES[i].dtype == dtype) return SIZES[i].bytes;
    }
    return 0;
}

int group_id(DipuGroupId* id) {
    uint64_t chance;
    if (getrandom(&chance, sizeof chance, 0) != sizeof chance) return chip_error("no entropy");
    snprintf(id->bytes, sizeof id->bytes, "/droplet-%d-%llx", getpid(), (unsigned long long)chance);
    return DIPU_OK;
}

int group_create(int device, int rank, int size, const DipuGroupId* id, void** out) {
    (void)device;
    Group* group = calloc(1, sizeof *group);
    if (!group) return DIPU_OUT_OF_MEMORY;
    group->rank = rank;
    group->size = size;
    snprintf(group->name, sizeof group->name, "%s", id->bytes);
    size_t boxes = (size_t)size * (size_t)size;
    group->bytes = 4096 + (size_t)size * SLOT + boxes * sizeof(Mailbox);
    int file = shm_open(group->name, O_RDWR | O_CREAT, 0600); /* zeros, whichever rank is first */
    void* memory = MAP_FAILED;
    if (file >= 0 && ftruncate(file, (off_t)group->bytes) == 0) {
        memory = mmap(NULL, group->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    if (file >= 0) close(file);
    if (memory == MAP_FAILED) {
        int status = chip_error("shared memory %s: %s", group->name, strerror(errno));
        free(group);
        return status;
    }
    group->shared = memory;
    group->slots = (char*)memory + 4096;
    group->mailboxes = (Mailbox*)(group->slots + (size_t)size * SLOT);
    atomic_fetch_add(&group->shared->joined, 1);
    while (atomic_load(&group->shared->joined) < (uint32_t)size) usleep(200);
    if (rank == 0) shm_unlink(group->name); /* all have it */
    *out = group;
    return DIPU_OK;
}

int group_destroy(void* communicator) {
    Group* group = communicator;
    munmap(group->shared, group->bytes);
    free(group);
    return DIPU_OK;
}

int group_abort(void* communicator) {
    atomic_store(&((Group*)communicator)->shared->aborted, 1);
    return DIPU_OK;
}

int group_query(void* communicator) {
    if (!atomic_load(&((Group*)communicator)->shared->aborted)) return DIPU_OK;
    return chip_error("the group was aborted");
}

/* Until all ranks are here. */
static int meet(Group* group) {
    Shared* shared = group->shared;
    uint32_t turn = atomic_load(&shared->turn);
    if (atomic_fetch_add(&shared->arrived, 1) + 1 == (uint32_t)group->size) {
        atomic_store(&shared->arrived, 0);
        atomic_fetch_add(&shared->turn, 1);
        return DIPU_OK;
    }
    for (long spins = 0; atomic_load(&shared->turn) == turn; ++spins) {
        if (atomic_load(&shared->aborted)) return chip_error("the group was aborted");
        if (spins > 1000) usleep(50);
        else sched_yield();
    }
    return DIPU_OK;
}

/* --- reductions -------------------------------------------------------------------------------- */

static double combine(double a, double b, int32_t how) {
    switch (how) {
        case DIPU_PRODUCT: return a * b;
        case DIPU_MIN: return b < a || b != b ? b : a;
        case DIPU_MAX: return b > a || b != b ? b : a;
        default: return a + b;
    }
}

static int64_t combine_whole(int64_t a, int64_t b, int32_t how) {
    switch (how) {
        case DIPU_PRODUCT: return a * b;
        case DIPU_MIN: return b < a ? b : a;
        case DIPU_MAX: return b > a ? b : a;
        case DIPU_BIT_AND: return a & b;
        case DIPU_BIT_OR: return a | b;
        case DIPU_BIT_XOR: return a ^ b;
        default: return a + b;
    }
}

static float of_bfloat16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static uint16_t to_bfloat16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return 0x7fc0;
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#define FLOATS(TYPE)                                                                   \
    {                                                                                  \
        double total = ((const TYPE*)group->slots)[i];                                 \
        for (int r = 1; r < group->size; ++r) {                                        \
            const TYPE* slot = (const TYPE*)(group->slots + (size_t)r * SLOT);         \
            total = combine(total, slot[i], how);                                      \
        }                                                                              \
        ((TYPE*)to)[i] = (TYPE)(how == DIPU_AVERAGE ? total / group->size : total);    \
        break;                                                                         \
    }
#define WHOLES(TYPE)                                                                   \
    {                                                                                  \
        int64_t total = ((const TYPE*)group->slots)[i];                                \
        for (int r = 1; r < group->size; ++r) {                                        \
            const TYPE* slot = (const TYPE*)(group->slots + (size_t)r * SLOT);         \
            total = combine_whole(total, slot[i], how);                                \
        }                                                                              \
        ((TYPE*)to)[i] = (TYPE)(how == DIPU_AVERAGE ? total / group->size : total);    \
        break;                                                                         \
    }

/* Reduces the slots of all ranks, element by element, from `first` on. */
static int combine_slots(const Group* group, int32_t dtype, int32_t how, size_t first, size_t count,
                         void* out) {
    for (size_t k = 0; k < count; ++k) {
        size_t i = first + k;
        char* to = (char*)out - first * size_of(dtype);
        switch (dtype) {
            case diopi_dtype_float32: FLOATS(float)
            case diopi_dtype_float64: FLOATS(double)
            case diopi_dtype_int64: WHOLES(int64_t)
            case diopi_dtype_int32: WHOLES(int32_t)
            case diopi_dtype_int16: WHOLES(int16_t)
            case diopi_dtype_int8: WHOLES(int8_t)
            case diopi_dtype_uint8: WHOLES(uint8_t)
            case diopi_dtype_bool: {
                int64_t total = ((const uint8_t*)group->slots)[i];
                for (int r = 1; r < group->size; ++r) {
                    const uint8_t* slot = (const uint8_t*)(group->slots + (size_t)r * SLOT);
                    total = combine_whole(total, slot[i], how);
                }
                ((uint8_t*)to)[i] = total != 0; /* true and true are true, not 2 */
                break;
            }
            case diopi_dtype_bfloat16: {
                float total = of_bfloat16(((const uint16_t*)group->slots)[i]);
                for (int r = 1; r < group->size; ++r) {
                    const uint16_t* slot = (const uint16_t*)(group->slots + (size_t)r * SLOT);
                    total = (float)combine(total, of_bfloat16(slot[i]), how);
                }
                if (how == DIPU_AVERAGE) total /= (float)group->size;
                ((uint16_t*)to)[i] = to_bfloat16(total);
                break;
            }
            default: return chip_error("no reduction of the type number %d", (int)dtype);
        }
    }
    return DIPU_OK;
}

#define TRY_GROUP(CALL)                  \
    do {                                 \
        int tried = (CALL);              \
        if (tried != DIPU_OK) return tried; \
    } while (0)

/* Chunk by chunk: every rank fills its slot, all synchronize, `take` reads, all synchronize again. */
typedef int (*Take)(Group*, const DipuCollective*, size_t start, size_t count, size_t width);

static int in_chunks(const DipuCollective* call, bool gives, Take take) {
    Group* group = call->communicator;
    size_t width = size_of(call->dtype);
    if (!width) return chip_error("no collective of the type number %d", (int)call->dtype);
    size_t most = SLOT / width;
    for (size_t start = 0; start < call->count || start == 0; start += most) {
        size_t count = call->count - start < most ? call->count - start : most;
        if (gives) {
            const char* from = chip_memory(call->src);
            memcpy(group->slots + (size_t)group->rank * SLOT, from + start * width, count * width);
        }
        TRY_GROUP(meet(group));
        TRY_GROUP(take(group, call, start, count, width));
        TRY_GROUP(meet(group));
        if (call->count == 0) break;
    }
    return DIPU_OK;
}

static int take_reduced(Group* group, const DipuCollective* call, size_t start, size_t count,
                        size_t width) {
    char* to = chip_memory(call->dst);
    return combine_slots(group, call->dtype, call->reduction, 0, count, to + start * width);
}
static int take_at_root(Group* group, const DipuCollective* call, size_t start, size_t count,
                        size_t width) {
    if (group->rank != call->peer) return DIPU_OK;
    return take_reduced(group, call, start, count, width);
}
static int take_from_root(Group* group, const DipuCollective* call, size_t start, size_t count,
                          size_t width) {
    char* to = chip_memory(call->dst);
    memcpy(to + start * width, group->slots + (size_t)call->peer * SLOT, count * width);
    return DIPU_OK;
}
static int take_all(Group* group, const DipuCollective* call, size_t start, size_t count,
                    size_t width) {
    char* to = chip_memory(call->dst);
    for (int r = 0; r < group->size; ++r) {
        memcpy(to + ((size_t)r * call->count + start) * width, group->slots + (size_t)r * SLOT,
               count * width);
    }
    return DIPU_OK;
}

int group_all_reduce(const DipuCollective* call) { return in_chunks(call, true, take_reduced); }
int group_reduce(const DipuCollective* call) { return in_chunks(call, true, take_at_root); }
int group_all_gather(const DipuCollective* call) { return in_chunks(call, true, take_all); }
int group_broadcast(const DipuCollective* call) {
    const Group* group = call->communicator;
    return in_chunks(call, group->rank == call->peer, take_from_root);
}

/* Rank by rank: the part of each is reduced, and only this rank reads the result. */
int group_reduce_scatter(const DipuCollective* call) {
    const Group* group = call->communicator;
    for (int r = 0; r < group->size; ++r) {
        DipuCollective part = *call;
        part.peer = r;
        part.src = (const char*)call->src + (size_t)r * call->count * size_of(call->dtype);
        TRY_GROUP(group_reduce(&part));
    }
    return DIPU_OK;
}

/* --- point to point ---------------------------------------------------------------------------- */

/* Moves as many bytes as possible without blocking; returns their number. */
static size_t step(Group* group, Post* post) {
    const DipuCollective* call = &post->call;
    size_t left = call->count * size_of(call->dtype) - post->done;
    int from = post->sends ? group->rank : call->peer, to = post->sends ? call->peer : group->rank;
    Mailbox* box = &group->mailboxes[from * group->size + to];
    if (post->sends) {
        if (atomic_load(&box->full)) return 0;
        box->bytes = (uint32_t)(left < LETTER ? left : LETTER);
        memcpy(box->data, (const char*)chip_memory(call->src) + post->done, box->bytes);
        atomic_store(&box->full, 1);
    } else {
        if (!atomic_load(&box->full)) return 0;
        memcpy((char*)chip_memory(call->dst) + post->done, box->data, box->bytes);
        atomic_store(&box->full, 0);
    }
    post->done += box->bytes;
    return box->bytes;
}

static int run_posts(Group* group) {
    int status = DIPU_OK;
    for (bool open = true; open && status == DIPU_OK;) {
        size_t went = 0;
        open = false;
        for (int i = 0; i < group->posted; ++i) {
            Post* post = group->posts[i];
            if (post->done == post->call.count * size_of(post->call.dtype)) continue;
            bool blocked = false; /* messages of one pair keep their order */
            for (int k = 0; k < i; ++k) {
                const Post* earlier = group->posts[k];
                blocked |= earlier->sends == post->sends && earlier->call.peer == post->call.peer &&
                           earlier->done < earlier->call.count * size_of(earlier->call.dtype);
            }
            if (!blocked) went += step(group, post);
            open = true;
        }
        if (!went && open) usleep(20);
        if (atomic_load(&group->shared->aborted)) status = chip_error("the group was aborted");
    }
    for (int i = 0; i < group->posted; ++i) free(group->posts[i]);
    group->posted = 0;
    return status;
}

static int post(const DipuCollective* call, bool sends) {
    Group* group = call->communicator;
    if (!size_of(call->dtype)) return chip_error("no type number %d", (int)call->dtype);
    if (group->posted == POSTED) return chip_error("more than %d at once", POSTED);
    Post* made = malloc(sizeof *made);
    if (!made) return DIPU_OUT_OF_MEMORY;
    memcpy(made, &(Post){*call, sends, 0}, sizeof *made);
    group->posts[group->posted++] = made;
    return group->collecting ? DIPU_OK : run_posts(group);
}

int group_send(const DipuCollective* call) { return post(call, true); }
int group_receive(const DipuCollective* call) { return post(call, false); }

int group_begin(void* communicator) {
    ((Group*)communicator)->collecting = 1;
    return DIPU_OK;
}

int group_end(void* communicator) {
    Group* group = communicator;
    group->collecting = 0;
    return run_posts(group);
}
