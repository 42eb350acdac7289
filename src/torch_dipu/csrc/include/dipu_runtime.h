/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface of a chip: one table of functions, provided by a vendor's shared library.
 *
 * A library exports `const DipuRuntime* dipu_runtime(void)`. Every function returns DIPU_OK or an
 * error code; `last_error` then gives the text for the calling thread. A pointer marked optional
 * may be NULL. Streams and events are the vendor's own handles; the stream NULL is the default
 * stream of the device. Functions are called from any thread; `device` is always explicit.
 * The Python interface of this table is torch_dipu.runtime.Runtime.
 */
#ifndef DIPU_RUNTIME_H_
#define DIPU_RUNTIME_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DIPU_RUNTIME_ABI 3

enum {
  DIPU_OK = 0,
  DIPU_ERROR = 1,
  DIPU_OUT_OF_MEMORY = 2,
  DIPU_NOT_READY = 3, /* a query of work that is still running */
};

#define DIPU_HOST (-1) /* a "device" in a copy: ordinary or pinned host memory */

typedef struct DipuDeviceInfo {
  char name[64];
  uint64_t total_memory;
  int32_t major, minor;   /* capability, numbered by the vendor */
  int32_t multiprocessors;
} DipuDeviceInfo;

/* Device memory that the host can access as well: host address = device address + (host - device).
 * Host kernels then run on the device's own bytes. */
typedef struct DipuWindow {
  char* device;
  char* host;
  size_t bytes;
} DipuWindow;

typedef struct DipuCopy {
  void* dst;
  const void* src;
  size_t bytes;
  int32_t dst_device, src_device; /* DIPU_HOST or an ordinal */
  int32_t stream_device;          /* the device whose stream orders it */
  int32_t blocking;               /* 1: return when the bytes have arrived */
  void* stream;
} DipuCopy;

/* The identifier of a group: created by one process and sent to the others. */
typedef struct DipuGroupId {
  char bytes[128];
} DipuGroupId;

enum DipuReduction {
  DIPU_SUM, DIPU_PRODUCT, DIPU_MIN, DIPU_MAX, DIPU_AVERAGE, DIPU_BIT_AND, DIPU_BIT_OR, DIPU_BIT_XOR
};

/* One operation of a group. `count` is in elements: of the part of one process where the other buffer
 * holds the parts of all (all_gather: of src; reduce_scatter: of dst), in the order of the ranks.
 * src and dst may be the same memory. It is ordered on the stream, and may return before it is done. */
typedef struct DipuCollective {
  void* communicator;
  const void* src; /* NULL where this process sends nothing */
  void* dst;       /* NULL where it receives nothing */
  size_t count;
  int32_t dtype;     /* a number of diopiDtype_t (diopi_runtime.h) */
  int32_t reduction; /* of DipuReduction */
  int32_t peer;      /* the root of broadcast and reduce; the peer of send and receive */
  int32_t reserved;
  void* stream;
} DipuCollective;

/* A call of the host in a graph: `run` returns DIPU_OK, or the replay fails; `release` is called once,
 * when the graph is destroyed. */
typedef struct DipuHostCall {
  int (*run)(void* data);
  void (*release)(void* data);
  void* data;
} DipuHostCall;

typedef struct DipuRuntime {
  uint32_t abi;  /* DIPU_RUNTIME_ABI */
  uint32_t size; /* sizeof(DipuRuntime) */
  const char* (*last_error)(void);

  /* device */
  int (*device_count)(int* count);
  int (*device_info)(int device, DipuDeviceInfo* info);
  int (*device_synchronize)(int device);

  /* memory: called for whole segments; the caching allocator is torch_dipu's own */
  int (*memory_allocate)(int device, size_t bytes, void** out);
  int (*memory_free)(int device, void* address);
  int (*memory_info)(int device, size_t* free_bytes, size_t* total_bytes);
  int (*memory_window)(int device, DipuWindow* window); /* optional */
  int (*memory_copy)(const DipuCopy* copy);
  int (*memory_export)(int device, void* address, int* fd, uint64_t* offset);            /* optional */
  int (*memory_import)(int device, int fd, uint64_t offset, size_t bytes, void** out);   /* optional */
  int (*host_allocate)(size_t bytes, void** out); /* pinned */
  int (*host_free)(void* address);

  /* stream */
  int (*stream_create)(int device, int priority, void** out);
  int (*stream_synchronize)(int device, void* stream);
  int (*stream_query)(int device, void* stream);
  int (*stream_wait_event)(int device, void* stream, void* event);

  /* event */
  int (*event_create)(int device, int timing, void** out);
  int (*event_destroy)(int device, void* event);
  int (*event_record)(int device, void* event, void* stream);
  int (*event_query)(void* event);
  int (*event_synchronize)(void* event);
  int (*event_elapsed)(void* start, void* end, double* milliseconds);

  /* generator: the state is kept by torch_dipu for every chip; a chip may provide entropy */
  int (*entropy)(int device, uint64_t* seed); /* optional */

  /* communicator: one process is one rank of a group; without these there is no "dicl".
   * comm_query returns the error of an operation that failed after its launch; comm_abort makes blocked
   * operations return with an error. Between comm_begin and comm_end, sends and receives are
   * collected and run together, which implements all-to-all, gather and scatter. comm_probe
   * returns a rank whose message is pending, or DIPU_NOT_READY: for receiving from any rank. */
  int (*comm_id)(DipuGroupId* id); /* optional */
  int (*comm_create)(int device, int rank, int size, const DipuGroupId* id, void** out); /* optional */
  int (*comm_destroy)(void* communicator);               /* optional */
  int (*comm_abort)(void* communicator);                 /* optional */
  int (*comm_query)(void* communicator);                 /* optional */
  int (*comm_begin)(void* communicator);                 /* optional */
  int (*comm_end)(void* communicator);                   /* optional */
  int (*comm_all_reduce)(const DipuCollective* call);    /* optional */
  int (*comm_broadcast)(const DipuCollective* call);     /* optional */
  int (*comm_reduce)(const DipuCollective* call);        /* optional */
  int (*comm_all_gather)(const DipuCollective* call);    /* optional */
  int (*comm_reduce_scatter)(const DipuCollective* call); /* optional */
  int (*comm_send)(const DipuCollective* call);          /* optional */
  int (*comm_receive)(const DipuCollective* call);       /* optional */
  int (*comm_probe)(void* communicator, int* source);    /* optional */

  /* graph: without these torch.accelerator.Graph raises. Between capture_begin and capture_end the chip
   * records what is launched on the stream (kernels, copies, events) instead of running it. A chip
   * without a queue of its own provides capture_host: torch_dipu then runs every call itself, adds it
   * to the graph by capture_host, in order, and restores memory at the end. graph_replay launches the
   * recorded calls on a stream, on the memory of the capture. */
  int (*capture_begin)(int device, void* stream);                          /* optional */
  int (*capture_host)(int device, void* stream, const DipuHostCall* call); /* optional */
  int (*capture_end)(int device, void* stream, void** graph);              /* optional */
  int (*graph_replay)(int device, void* graph, void* stream);              /* optional */
  int (*graph_destroy)(int device, void* graph);                           /* optional */
} DipuRuntime;

typedef const DipuRuntime* (*DipuRuntimeGetter)(void);

#ifdef __cplusplus
}
#endif
#endif /* DIPU_RUNTIME_H_ */
