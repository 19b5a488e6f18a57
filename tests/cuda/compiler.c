// NVIDIA's run-time compiler, as libnvrtc.so: it passes each kernel on to the real one, keeps its source, counts what
// fails, and on demand has the CPU's compiler compile it too (emulate.py), for driver.c to run.
//
//   FAKE_NVRTC_REAL     the real libnvrtc; empty where nothing is to be compiled by it
//   FAKE_CUDA_KERNELS   a folder for sources (.cu), complaints (.err) and code for the CPU (.so)
//   FAKE_CUDA_EMULATE   the command that makes SOURCE into LIBRARY; unset: kernels do not run
//   FAKE_NVRTC_REPORT   a file that gets one line of JSON at the end: how many kernels, how many failed, how many the
//                       CPU has no code for
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int Result;
enum { SUCCESS = 0, COMPILATION_FAILED = 6 };

// A program: the real compiler's handle, its source, and what its code ends with.
typedef struct {
  void *real;
  char *source, *log, tail[600];
  uint64_t hash;
} Program;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t programs, failed, not_emulated;

static const char *setting(const char *name) {
  const char *value = getenv(name);
  return value && *value ? value : NULL;
}

static void *real(const char *name) {
  static void *library;
  if (!library) library = dlopen(setting("FAKE_NVRTC_REAL"), RTLD_NOW | RTLD_GLOBAL);
  void *function = library ? dlsym(library, name) : NULL;
  if (!function) {
    fprintf(stderr, "fake nvrtc: the real one has no %s: %s\n", name, dlerror());
    abort();
  }
  return function;
}

static void report(void) {
  const char *path = setting("FAKE_NVRTC_REPORT");
  FILE *file = path ? fopen(path, "w") : NULL;
  if (!file) return;
  fprintf(file, "{\"compiled\":%zu,\"failed\":%zu,\"not_emulated\":%zu}\n", programs, failed, not_emulated);
  fclose(file);
}

static uint64_t fnv1a(const char *text) {
  uint64_t hash = 14695981039346656037ull;
  for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 1099511628211ull;
  return hash;
}

static void place(char path[600], const Program *program, const char *kind) {
  const char *folder = setting("FAKE_CUDA_KERNELS");
  snprintf(path, 600, "%s/%016lx.%s", folder ? folder : ".", (unsigned long)program->hash, kind);
}

static void write_file(const Program *program, const char *kind, const char *text) {
  char path[600], unfinished[640];
  place(path, program, kind);
  // Whole or not at all: other processes read it.
  snprintf(unfinished, sizeof unfinished, "%s.%d", path, (int)getpid());
  FILE *file = fopen(unfinished, "w");
  if (!file) return;
  fputs(text, file);
  fclose(file);
  rename(unfinished, path);
}

static void count(size_t *number) {
  pthread_mutex_lock(&lock);
  ++*number;
  pthread_mutex_unlock(&lock);
}

Result nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 0; return SUCCESS; }
const char *nvrtcGetErrorString(Result result) { return result ? "the kernel does not compile" : "no error"; }

Result nvrtcCreateProgram(void **out, const char *source, const char *name, int headers, const char *const *texts,
                          const char *const *names) {
  Program *program = calloc(1, sizeof *program);
  program->source = strdup(source);
  program->hash = fnv1a(source);
  pthread_mutex_lock(&lock);
  if (!programs++) atexit(report);
  pthread_mutex_unlock(&lock);
  *out = program;
  if (!setting("FAKE_NVRTC_REAL")) return SUCCESS;
  Result (*create)(void **, const char *, const char *, int, const char *const *, const char *const *) =
      real("nvrtcCreateProgram");
  return create(&program->real, source, name, headers, texts, names);
}

static Result by_real(Program *program, int count_of_options, const char *const *options) {
  if (!program->real) return SUCCESS;
  Result (*compile)(void *, int, const char *const *) = real("nvrtcCompileProgram");
  Result result = compile(program->real, count_of_options, options);
  if (!result) return SUCCESS;
  Result (*log_size)(void *, size_t *) = real("nvrtcGetProgramLogSize");
  Result (*log)(void *, char *) = real("nvrtcGetProgramLog");
  size_t size = 0;
  log_size(program->real, &size);
  program->log = calloc(1, size + 1);
  log(program->real, program->log);
  write_file(program, "err", program->log);
  fprintf(stderr, "fake nvrtc: %016lx.cu does not compile: %.300s\n", (unsigned long)program->hash, program->log);
  count(&failed);
  return result;
}

Result nvrtcCompileProgram(void *handle, int count_of_options, const char *const *options) {
  Program *program = handle;
  write_file(program, "cu", program->source);
  Result result = by_real(program, count_of_options, options);
  const char *emulate = setting("FAKE_CUDA_EMULATE");
  if (result || !emulate) return result;
  char source[600], library[600], log[600], command[2600];
  place(source, program, "cu");
  place(library, program, "so");
  place(log, program, "log");
  snprintf(command, sizeof command, "%s %s %s 2> %s", emulate, source, library, log);
  if (access(library, R_OK) && system(command)) {
    // As a compiler that refuses: who has tried several kernels for one purpose tries the next.
    count(&not_emulated);
    return COMPILATION_FAILED;
  }
  snprintf(program->tail, sizeof program->tail, "\n// CPU: %.580s \n", library);
  return SUCCESS;
}

Result nvrtcGetProgramLogSize(void *handle, size_t *size) {
  Program *program = handle;
  *size = program->log ? strlen(program->log) + 1 : 1;
  return SUCCESS;
}
Result nvrtcGetProgramLog(void *handle, char *text) {
  Program *program = handle;
  strcpy(text, program->log ? program->log : "");
  return SUCCESS;
}
Result nvrtcGetPTXSize(void *handle, size_t *size) {
  Program *program = handle;
  *size = 1;
  if (program->real) {
    Result (*ptx_size)(void *, size_t *) = real("nvrtcGetPTXSize");
    Result result = ptx_size(program->real, size);
    if (result) return result;
  }
  *size += strlen(program->tail);
  return SUCCESS;
}
Result nvrtcGetPTX(void *handle, char *text) {
  Program *program = handle;
  *text = 0;
  if (program->real) {
    Result (*ptx)(void *, char *) = real("nvrtcGetPTX");
    Result result = ptx(program->real, text);
    if (result) return result;
  }
  strcat(text, program->tail);
  return SUCCESS;
}
Result nvrtcDestroyProgram(void **handle) { return SUCCESS; }
