// A CUDA driver without a device, as libcuda.so: device memory is the host's, and a launch is counted, and carried out
// only if the kernel was compiled for the CPU as well (compiler.c).
//
//   FAKE_CUDA_SM      the architecture that it claims: 80, 90 or 100   (90)
//   FAKE_CUDA_DEVICES how many devices there are   (1); FAKE_CUDA_FIRST is the number of the first among all that
//                     processes have, which tells their places on the bus apart
//   FAKE_CUDA_MIB     the memory that it claims, of whose size pools make their pages   (81920, which can be had either way)
//   FAKE_CUDA_BREAKS  the number of a launch from which on all fail
//   FAKE_CUDA_LIST    a file that gets a line for each launch: the kernel's name, and its grid
//   FAKE_CUDA_REPORT  a file that gets one line of JSON at the end: kernels, launches, the largest memory and what was freed in bytes
//
// It has what cudarc's callers here use. A function that is missing shows at once: cudarc cannot load it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int Result;
typedef uint64_t Pointer;
enum { SUCCESS = 0, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NO_CONTEXT = 201, NOT_READY = 600, LAUNCH_FAILED = 719 };
static const size_t MEMORY = 80ull << 30, PAGE = 4096;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t kernels, launches, skipped, live, peak, freed;

static int number_of(const char *name, int usual) {
  const char *text = getenv(name);
  return text ? atoi(text) : usual;
}
static int architecture(void) { return number_of("FAKE_CUDA_SM", 90); }
static int devices(void) { return number_of("FAKE_CUDA_DEVICES", 1); }
static size_t claimed(void) { return (size_t)number_of("FAKE_CUDA_MIB", 80 << 10) << 20; }

static void report(void) {
  const char *path = getenv("FAKE_CUDA_REPORT");
  FILE *file = path ? fopen(path, "w") : NULL;
  if (!file) return;
  fprintf(file, "{\"architecture\":%d,\"kernels\":%zu,\"launches\":%zu,\"not_run\":%zu,\"peak_bytes\":%zu,\"freed_bytes\":%zu}\n",
          architecture(), kernels, launches, skipped, peak, freed);
  fclose(file);
}

// ---- the device ----

Result cuInit(unsigned flags) {
  static int once;
  if (!once++) atexit(report);
  return SUCCESS;
}
Result cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
Result cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return ordinal < 0 || ordinal >= devices() ? INVALID_DEVICE : SUCCESS;
}
Result cuDeviceGetCount(int *count) { *count = devices(); return SUCCESS; }
Result cuDeviceGetName(char *name, int size, int device) {
  snprintf(name, size, "no device, as sm_%d", architecture());
  return SUCCESS;
}
Result cuDeviceGetUuid_v2(char *uuid, int device) { memset(uuid, 0, 16); return SUCCESS; }
Result cuDeviceGetPCIBusId(char *text, int size, int device) {
  snprintf(text, size, "0000:%02x:00.0", number_of("FAKE_CUDA_FIRST", 0) + device);
  return SUCCESS;
}
Result cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = claimed(); return SUCCESS; }
Result cuMemGetInfo_v2(size_t *free, size_t *total) { *free = *total = claimed(); return SUCCESS; }

// Numbers of CUdevice_attribute, with those of an A100, an H100 and a B200.
Result cuDeviceGetAttribute(int *value, int attribute, int device) {
  int sm = architecture();
  switch (attribute) {
    case 1: case 2: case 3: *value = 1024; break;                       // threads a block, and its x and y
    case 4: *value = 64; break;                                         // z
    case 5: *value = 2147483647; break;                                 // blocks of a grid in x
    case 6: case 7: *value = 65535; break;                              // y and z
    case 8: *value = 48 << 10; break;                                   // shared memory of a block
    case 10: *value = 32; break;                                        // threads of a warp
    case 16: *value = sm >= 90 ? 132 : 108; break;                      // multiprocessors
    case 75: *value = sm / 10; break;
    case 76: *value = sm % 10; break;
    case 97: *value = sm == 80 ? 163 << 10 : 227 << 10; break;          // shared memory on demand
    default: *value = 0; fprintf(stderr, "fake cuda: attribute %d is asked for and unknown\n", attribute);
  }
  return SUCCESS;
}

// A context is its device's number and 8, and each thread's own.
static __thread uintptr_t current;
Result cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(uintptr_t)(8 + device); return SUCCESS; }
Result cuDevicePrimaryCtxRelease_v2(int device) { return SUCCESS; }
Result cuCtxSetCurrent(void *context) { current = (uintptr_t)context; return SUCCESS; }
Result cuCtxGetCurrent(void **context) { *context = (void *)current; return SUCCESS; }
Result cuCtxGetDevice(int *device) { *device = (int)current - 8; return current ? SUCCESS : NO_CONTEXT; }
Result cuCtxSynchronize(void) { return SUCCESS; }

// ---- streams and events: everything is done when it is asked for, but for what nccl.c has a stream wait for ----

enum { STREAMS = 4096 };
static int waits_for[STREAMS];
Result cuStreamCreate(void **stream, unsigned flags) {
  static uintptr_t made;
  *stream = (void *)(16 + __atomic_fetch_add(&made, 1, __ATOMIC_SEQ_CST) % (STREAMS - 16));
  return SUCCESS;
}
void fake_stream_has(void *stream, int more) { __atomic_add_fetch(&waits_for[(uintptr_t)stream % STREAMS], more, __ATOMIC_SEQ_CST); }
Result cuStreamQuery(void *stream) {
  return __atomic_load_n(&waits_for[(uintptr_t)stream % STREAMS], __ATOMIC_SEQ_CST) ? NOT_READY : SUCCESS;
}
Result cuStreamDestroy_v2(void *stream) { return SUCCESS; }
Result cuStreamSynchronize(void *stream) {
  while (cuStreamQuery(stream) == NOT_READY) usleep(100);
  return SUCCESS;
}
Result cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return SUCCESS; }
Result cuEventCreate(void **event, unsigned flags) { *event = (void *)24; return SUCCESS; }
Result cuEventRecord(void *event, void *stream) { return SUCCESS; }
Result cuEventSynchronize(void *event) { return SUCCESS; }
Result cuEventQuery(void *event) { return SUCCESS; }
Result cuEventElapsedTime(float *milliseconds, void *from, void *to) { *milliseconds = 1; return SUCCESS; }
Result cuEventDestroy_v2(void *event) { return SUCCESS; }

// ---- memory ----

// Pages that nobody touches cost nothing, so that pools may be as large as on a card. The page before holds the size.
Result cuMemAlloc_v2(Pointer *pointer, size_t bytes) {
  size_t whole = (bytes + 2 * PAGE - 1) / PAGE * PAGE;
  pthread_mutex_lock(&lock);
  int fits = live + bytes <= MEMORY;
  if (fits && (live += bytes) > peak) peak = live;
  pthread_mutex_unlock(&lock);
  if (!fits) return OUT_OF_MEMORY;
  char *memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return OUT_OF_MEMORY;
  ((size_t *)memory)[0] = whole;
  ((size_t *)memory)[1] = bytes;
  *pointer = (Pointer)(memory + PAGE);
  return SUCCESS;
}
Result cuMemFree_v2(Pointer pointer) {
  char *memory = (char *)pointer - PAGE;
  size_t whole = ((size_t *)memory)[0], bytes = ((size_t *)memory)[1];
  munmap(memory, whole);
  pthread_mutex_lock(&lock);
  live -= bytes;
  freed += bytes;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}
Result cuMemAllocAsync(Pointer *pointer, size_t bytes, void *stream) { return cuMemAlloc_v2(pointer, bytes); }
Result cuMemFreeAsync(Pointer pointer, void *stream) { return cuMemFree_v2(pointer); }
Result cuMemAllocHost_v2(void **pointer, size_t bytes) {
  *pointer = NULL;
  return posix_memalign(pointer, PAGE, bytes) ? OUT_OF_MEMORY : SUCCESS;
}
Result cuMemFreeHost(void *pointer) { free(pointer); return SUCCESS; }
Result cuMemcpyHtoDAsync_v2(Pointer to, const void *from, size_t bytes, void *stream) {
  memcpy((void *)to, from, bytes);
  return SUCCESS;
}
Result cuMemcpyDtoHAsync_v2(void *to, Pointer from, size_t bytes, void *stream) {
  memcpy(to, (void *)from, bytes);
  return SUCCESS;
}
Result cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t bytes, void *stream) {
  memcpy((void *)to, (void *)from, bytes);
  return SUCCESS;
}
Result cuMemsetD8Async(Pointer to, unsigned char value, size_t bytes, void *stream) {
  memset((void *)to, value, bytes);
  return SUCCESS;
}

// CUDA_MEMCPY2D; kind 1 is memory of the host.
typedef struct {
  size_t from_x, from_y; int from_kind; const void *from_host; Pointer from_device; void *from_array; size_t from_pitch;
  size_t to_x, to_y; int to_kind; void *to_host; Pointer to_device; void *to_array; size_t to_pitch;
  size_t width, height;
} Copy2D;
Result cuMemcpy2DAsync_v2(const Copy2D *copy, void *stream) {
  const char *from = copy->from_kind == 1 ? copy->from_host : (void *)copy->from_device;
  char *to = copy->to_kind == 1 ? copy->to_host : (void *)copy->to_device;
  for (size_t y = 0; y < copy->height; y++)
    memcpy(to + (copy->to_y + y) * copy->to_pitch + copy->to_x,
           from + (copy->from_y + y) * copy->from_pitch + copy->from_x, copy->width);
  return SUCCESS;
}

// ---- kernels ----

// One kernel of a module. `run` is what the CPU's compiler made of it, where it did.
typedef struct {
  char name[512];
  void (*run)(unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void **);
} Kernel;

Result cuModuleLoadData(void **module, const void *image) {
  Kernel *kernel = calloc(1, sizeof *kernel);
  if (!kernel) return OUT_OF_MEMORY;
  // compiler.c adds this line to the code.
  const char *mark = strstr(image, "// CPU: ");
  char path[512];
  if (mark && sscanf(mark + 8, "%511s", path) == 1) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "fake cuda: %s\n", dlerror());
    else *(void **)&kernel->run = dlsym(library, "run_grid");
  }
  pthread_mutex_lock(&lock);
  kernels++;
  pthread_mutex_unlock(&lock);
  *module = kernel;
  return SUCCESS;
}
Result cuModuleUnload(void *module) { return SUCCESS; }
Result cuModuleGetFunction(void **function, void *module, const char *name) {
  snprintf(((Kernel *)module)->name, sizeof ((Kernel *)module)->name, "%s", name);
  *function = module;
  return SUCCESS;
}
Result cuFuncSetAttribute(void *function, int attribute, int value) { return SUCCESS; }

Result cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                      unsigned block_z, unsigned shared, void *stream, void **arguments, void **extra) {
  Kernel *kernel = function;
  // One launch after the other, as one stream has it: the emulator has one set of threads.
  static pthread_mutex_t running = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&running);
  launches++;
  static FILE *list;
  if (launches == 1 && getenv("FAKE_CUDA_LIST")) list = fopen(getenv("FAKE_CUDA_LIST"), "w");
  if (list) fprintf(list, "%s %u %u %u\n", kernel->name, grid_x, grid_y, grid_z);
  size_t breaks = number_of("FAKE_CUDA_BREAKS", 0);
  if (breaks && launches >= breaks) {
    pthread_mutex_unlock(&running);
    return LAUNCH_FAILED;
  }
  if (kernel->run) {
    kernel->run(grid_x, grid_y, grid_z, block_x, block_y, block_z, arguments);
  } else {
    skipped++;
    if (getenv("FAKE_CUDA_EMULATE")) fprintf(stderr, "fake cuda: not run: %s\n", kernel->name);
  }
  pthread_mutex_unlock(&running);
  return SUCCESS;
}

// The descriptors of the copy engine, whose kernels are compiled and not run.
Result cuTensorMapEncodeTiled(void *map) { memset(map, 0, 128); return SUCCESS; }
Result cuTensorMapEncodeIm2col(void *map) { return SUCCESS; }
Result cuTensorMapEncodeIm2colWide(void *map) { return SUCCESS; }
Result cuGetErrorName(int error, const char **text) { *text = "an error"; return SUCCESS; }
Result cuGetErrorString(int error, const char **text) { *text = "an error of a driver without a device"; return SUCCESS; }
