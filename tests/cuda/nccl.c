// NCCL without GPUs, as libnccl.so.2: sums of what lies in the memory of driver.c's device, over sockets of this machine.
// As NCCL's own, a sum is begun by its call and done later, on a stream; a rank that is lost shows as an error of the
// communicator; and a communicator that was aborted must not be used again.
//
//   FAKE_NCCL_REPORT    a file that gets one line of JSON at the end: communicators, sums, values, what is still open
//   FAKE_NCCL_VERSION   the version that it claims   (22803)
//   FAKE_NCCL_HANG      the number of a sum, from 1, that never ends
//   FAKE_NCCL_FAIL      the number of a sum that fails
//   FAKE_NCCL_REFUSE    set: no communicator starts
//
// Rank 0 adds what all bring, in the order of ranks, so that the same ranks give the same bits.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

typedef int Result;
enum { SUCCESS = 0, CUDA_ERROR = 1, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum { FLOAT = 7, BFLOAT16 = 9, SUM = 0, MOST = 64 };

typedef struct { char internal[128]; } Id;
typedef struct Communicator {
  int rank, world, peers[MOST];   // at rank 0 the others', else rank 0's in the first
  Result error;
  int aborted, busy, sums;
} Communicator;
typedef struct { size_t count; int kind; int number; } Header;
typedef struct { Communicator *comm; const void *from; void *to; Header header; void *stream; } Work;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t communicators, open_ones, sums, values;
static char last_error[200] = "";
static struct { char name[128]; int socket; } listening[MOST];

static int number_of(const char *name) {
  const char *text = getenv(name);
  return text ? atoi(text) : 0;
}
static Result failed(Result result, const char *words) {
  snprintf(last_error, sizeof last_error, "%s", words);
  return result;
}
static void report(void) {
  const char *path = getenv("FAKE_NCCL_REPORT");
  FILE *file = path ? fopen(path, "w") : NULL;
  if (!file) return;
  fprintf(file, "{\"communicators\":%zu,\"sums\":%zu,\"values\":%zu,\"open\":%zu}\n", communicators, sums, values, open_ones);
  fclose(file);
}

// ---- the driver, which a sum has to have been prepared for ----

static void *driver(const char *name) {
  static void *library;
  if (!library) library = dlopen("libcuda.so", RTLD_NOW);
  void *function = library ? dlsym(library, name) : NULL;
  if (!function) {
    fprintf(stderr, "fake nccl: the driver beside it has no %s\n", name);
    abort();
  }
  return function;
}
static int has_context(void) {
  void *context = NULL;
  ((Result (*)(void **))driver("cuCtxGetCurrent"))(&context);
  return context != NULL;
}
static void stream_has(void *stream, int more) { ((void (*)(void *, int))driver("fake_stream_has"))(stream, more); }

// ---- sockets ----

static int all(int socket, void *bytes, size_t count, int sends) {
  for (char *at = bytes; count;) {
    ssize_t done = sends ? send(socket, at, count, MSG_NOSIGNAL) : recv(socket, at, count, 0);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return 0;
    at += done, count -= done;
  }
  return 1;
}
static socklen_t address(struct sockaddr_un *where, const char *name) {
  memset(where, 0, sizeof *where);
  where->sun_family = AF_UNIX;
  snprintf(where->sun_path + 1, sizeof where->sun_path - 1, "%s", name);
  return sizeof where->sun_family + 1 + strlen(name);
}

// ---- what is called ----

Result ncclGetVersion(int *version) {
  *version = number_of("FAKE_NCCL_VERSION") ? number_of("FAKE_NCCL_VERSION") : 22803;
  return SUCCESS;
}
const char *ncclGetLastError(Communicator *comm) { return last_error; }

Result ncclGetUniqueId(Id *id) {
  static int made;
  pthread_mutex_lock(&lock);
  int number = made++ % MOST;
  pthread_mutex_unlock(&lock);
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "fake-nccl-%d-%d", (int)getpid(), number);
  struct sockaddr_un where;
  int socket_of = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t length = address(&where, id->internal);
  if (bind(socket_of, (void *)&where, length) || listen(socket_of, MOST)) return failed(SYSTEM_ERROR, "no port");
  snprintf(listening[number].name, sizeof listening[number].name, "%s", id->internal);
  listening[number].socket = socket_of;
  return SUCCESS;
}

Result ncclCommInitRank(Communicator **made, int world, Id id, int rank) {
  if (getenv("FAKE_NCCL_REFUSE")) return failed(SYSTEM_ERROR, "it was told to refuse");
  if (!has_context()) return failed(CUDA_ERROR, "no context is current in the thread that starts");
  if (world < 2 || world > MOST || rank < 0 || rank >= world) return failed(INVALID_ARGUMENT, "no such rank");
  Communicator *comm = calloc(1, sizeof *comm);
  comm->rank = rank, comm->world = world;
  if (rank == 0) {
    int number = 0;
    while (number < MOST && strcmp(listening[number].name, id.internal)) number++;
    if (number == MOST) return failed(INVALID_ARGUMENT, "the identifier is not of this process");
    for (int other = 1; other < world; other++) {
      int from = accept(listening[number].socket, NULL, NULL), who = 0;
      if (from < 0 || !all(from, &who, sizeof who, 0) || who < 1 || who >= world || comm->peers[who])
        return failed(REMOTE_ERROR, "a rank did not come as it should");
      comm->peers[who] = from;
    }
    close(listening[number].socket);
    listening[number].name[0] = 0;
  } else {
    struct sockaddr_un where;
    socklen_t length = address(&where, id.internal);
    comm->peers[0] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(comm->peers[0], (void *)&where, length) || !all(comm->peers[0], &rank, sizeof rank, 1))
      return failed(REMOTE_ERROR, "rank 0 does not answer");
  }
  pthread_mutex_lock(&lock);
  if (!communicators++) atexit(report);
  open_ones++;
  pthread_mutex_unlock(&lock);
  *made = comm;
  return SUCCESS;
}

static float widened(const void *from, size_t i, int kind) {
  if (kind == FLOAT) return ((const float *)from)[i];
  uint32_t bits = (uint32_t)((const uint16_t *)from)[i] << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
static void narrowed(void *to, size_t i, int kind, float value) {
  if (kind == FLOAT) {
    ((float *)to)[i] = value;
    return;
  }
  uint32_t bits;
  memcpy(&bits, &value, 4);
  ((uint16_t *)to)[i] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static Result summed(const Work *work) {
  Communicator *comm = work->comm;
  Header header = work->header;
  size_t bytes = header.count * (header.kind == FLOAT ? 4 : 2);
  if (comm->rank) {
    int root = comm->peers[0];
    return all(root, &header, sizeof header, 1) && all(root, (void *)work->from, bytes, 1) && all(root, work->to, bytes, 0)
               ? SUCCESS : REMOTE_ERROR;
  }
  float *total = malloc(header.count * sizeof *total + 1);
  char *came = malloc(bytes + 1);
  Result result = SUCCESS;
  for (size_t i = 0; i < header.count; i++) total[i] = widened(work->from, i, header.kind);
  for (int rank = 1; rank < comm->world && result == SUCCESS; rank++) {
    Header theirs;
    if (!all(comm->peers[rank], &theirs, sizeof theirs, 0)) result = REMOTE_ERROR;
    else if (theirs.count != header.count || theirs.kind != header.kind || theirs.number != header.number) {
      fprintf(stderr, "fake nccl: rank %d brings %zu values to sum %d, and rank 0 %zu to sum %d\n", rank, theirs.count,
              theirs.number, header.count, header.number);
      result = INVALID_ARGUMENT;
    } else if (!all(comm->peers[rank], came, bytes, 0)) result = REMOTE_ERROR;
    else for (size_t i = 0; i < header.count; i++) total[i] += widened(came, i, header.kind);
  }
  for (size_t i = 0; i < header.count && result == SUCCESS; i++) narrowed(work->to, i, header.kind, total[i]);
  for (int rank = 1; rank < comm->world && result == SUCCESS; rank++)
    if (!all(comm->peers[rank], work->to, bytes, 1)) result = REMOTE_ERROR;
  free(total), free(came);
  return result;
}

static void *run(void *argument) {
  Work *work = argument;
  if (work->header.number == number_of("FAKE_NCCL_HANG"))
    while (!work->comm->aborted) usleep(1000);
  else {
    Result result = summed(work);
    if (result != SUCCESS && !work->comm->aborted) work->comm->error = failed(result, "a rank is gone");
  }
  stream_has(work->stream, -1);
  __atomic_sub_fetch(&work->comm->busy, 1, __ATOMIC_SEQ_CST);
  free(work);
  return NULL;
}

static void must_live(const Communicator *comm, const char *what) {
  if (!comm->aborted) return;
  fprintf(stderr, "fake nccl: %s of a communicator that was aborted\n", what);
  abort();
}

Result ncclAllReduce(const void *from, void *to, size_t count, int kind, int operation, Communicator *comm, void *stream) {
  must_live(comm, "a sum");
  if (!has_context()) return failed(CUDA_ERROR, "no context is current in the thread that sums");
  if (!from || !to || operation != SUM || (kind != FLOAT && kind != BFLOAT16)) return failed(INVALID_ARGUMENT, "no such sum");
  pthread_mutex_lock(&lock);
  int number = ++comm->sums;
  sums++;
  values += count;
  pthread_mutex_unlock(&lock);
  if (number == number_of("FAKE_NCCL_FAIL")) return failed(SYSTEM_ERROR, "it was told to fail");
  Work *work = malloc(sizeof *work);
  *work = (Work){comm, from, to, {count, kind, number}, stream};
  stream_has(stream, 1);
  __atomic_add_fetch(&comm->busy, 1, __ATOMIC_SEQ_CST);
  pthread_t thread;
  if (pthread_create(&thread, NULL, run, work)) return failed(SYSTEM_ERROR, "no thread");
  pthread_detach(thread);
  return SUCCESS;
}

Result ncclCommGetAsyncError(Communicator *comm, Result *error) {
  must_live(comm, "the state");
  *error = comm->error;
  return SUCCESS;
}

// As in the real one, whose ranks of one host hold one another's connections: the end of a communicator waits until the
// others end theirs or their processes, and not for a sum, which may go on writing.
static void ends(Communicator *comm) {
  for (int rank = 0; rank < comm->world; rank++)
    if (comm->peers[rank]) shutdown(comm->peers[rank], SHUT_WR);
  for (int rank = 0; rank < comm->world; rank++) {
    char byte;
    while (comm->peers[rank] && recv(comm->peers[rank], &byte, 1, 0) > 0) {}
    if (comm->peers[rank]) close(comm->peers[rank]);
  }
  pthread_mutex_lock(&lock);
  open_ones--;
  pthread_mutex_unlock(&lock);
}
// What was aborted stays allocated, so that a use of it is seen.
Result ncclCommAbort(Communicator *comm) {
  must_live(comm, "an abort");
  comm->aborted = 1;
  ends(comm);
  return SUCCESS;
}
Result ncclCommDestroy(Communicator *comm) {
  must_live(comm, "the end");
  if (comm->busy) fprintf(stderr, "fake nccl: a communicator ends in the middle of a sum\n");
  comm->aborted = 1;
  ends(comm);
  return SUCCESS;
}
