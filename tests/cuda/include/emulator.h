// What a CUDA kernel needs to run on the CPU: its threads are fibers of one CPU thread, which change places where the
// kernel waits for its warp or its block. Shared memory begins as NaN, so that a read of what nobody wrote shows.
//
// A whole warp waits at each instruction that its threads do together; tensor cores compute with sums in f32, and cut
// the numbers of tf32 products as the hardware does. Real races and times are not to be seen here.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>
#include <sys/mman.h>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __shared__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// One of each in a kernel's library.
#define OF_KERNEL __attribute__((visibility("hidden")))

struct uint3 { unsigned x, y, z; };
static inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
static const int warpSize = 32;
OF_KERNEL uint3 threadIdx, blockIdx, blockDim, gridDim;
alignas(128) unsigned char dynamic_shared_mem[256 << 10];

// ---- threads ----

enum State { RUNS, AT_WARP, AT_BLOCK, IN_WARP, DONE };
struct Fiber { void *stack; State state; uint3 thread; };
enum { MOST_THREADS = 1024, STACK = 256 << 10 };
OF_KERNEL Fiber fibers[MOST_THREADS];
OF_KERNEL int current;
OF_KERNEL void *scheduler;

// Keeps the registers that a call keeps on the stack that is left, and takes them from the one that is entered.
asm(R"(.text
.p2align 4
.local switch_stack
switch_stack:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov (%rsi), %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");
extern "C" OF_KERNEL void switch_stack(void **from, void **to);

static __attribute__((noinline)) void wait_as(State state) {
  Fiber &fiber = fibers[current];
  fiber.state = state;
  switch_stack(&fiber.stack, &scheduler);
}
static inline void yield_in_warp() { wait_as(IN_WARP); }
static inline void __syncthreads() { wait_as(AT_BLOCK); }
static inline void __syncwarp(unsigned = -1) { wait_as(AT_WARP); }
static inline int lane() { return current & 31; }
static inline int first_of_warp() { return current & ~31; }

// ---- what the threads of a warp tell one another ----

struct alignas(16) Said { unsigned char bytes[256]; };
OF_KERNEL Said said[MOST_THREADS];

template <typename T> static void say(const T &value) {
  static_assert(sizeof(T) <= sizeof(Said), "too much to say");
  memcpy(&said[current], &value, sizeof(T));
  __syncwarp();
}
template <typename T> static T heard(int of) {
  T value;
  memcpy(&value, &said[first_of_warp() + of], sizeof(T));
  return value;
}
template <typename T> static T from_lane(T value, int of) {
  say(value);
  T other = heard<T>(of & 31);
  __syncwarp();
  return other;
}
template <typename T> static T __shfl_sync(unsigned, T value, int of) { return from_lane(value, of); }
template <typename T> static T __shfl_xor_sync(unsigned, T value, int mask) { return from_lane(value, lane() ^ mask); }
template <typename T> static T __shfl_up_sync(unsigned, T value, unsigned by) {
  return from_lane(value, lane() >= (int)by ? lane() - (int)by : lane());
}
template <typename T> static T __shfl_down_sync(unsigned, T value, unsigned by) {
  return from_lane(value, lane() + (int)by < 32 ? lane() + (int)by : lane());
}
static inline unsigned __ballot_sync(unsigned, int vote) {
  say<unsigned char>(vote != 0);
  unsigned votes = 0;
  for (int i = 0; i < 32; i++)
    if (fibers[first_of_warp() + i].state != DONE && heard<unsigned char>(i)) votes |= 1u << i;
  __syncwarp();
  return votes;
}
static inline int __any_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) != 0; }
static inline int __all_sync(unsigned mask, int vote) { return __ballot_sync(mask, !vote) == 0; }

// ---- numbers ----

template <typename To, typename From> static To bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "of unlike sizes");
  To result;
  memcpy(&result, &value, sizeof value);
  return result;
}
template <typename T> static T min(T a, T b) { return b < a ? b : a; }
template <typename T> static T max(T a, T b) { return a < b ? b : a; }
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned __int128)a * b >> 64; }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; i++) result |= (x >> i & 1) << (31 - i);
  return result;
}
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline float rsqrt(float x) { return 1 / sqrtf(x); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float x) { return 1 / x; }
static inline float __frsqrt_rn(float x) { return 1 / sqrtf(x); }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __int_as_float(int x) { return bits<float>(x); }
static inline int __float_as_int(float x) { return bits<int>(x); }
#define __expf expf
#define __logf logf
#define __sinf sinf
#define __cosf cosf
#define __tanhf tanhf
#define __powf powf
// Fibers never change places in the middle of these.
template <typename T, typename U> static T atomicAdd(T *to, U value) { T old = *to; *to = old + value; return old; }
template <typename T, typename U> static T atomicMax(T *to, U value) { T old = *to; if (value > old) *to = value; return old; }
template <typename T, typename U> static T atomicMin(T *to, U value) { T old = *to; if (value < old) *to = value; return old; }

// 16-bit numbers, which compute in f32 and round to the nearest, ties to even.
struct AsBfloat16 {
  static uint16_t pack(float value) {
    uint32_t word = bits<uint32_t>(value);
    if ((word & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (word + 0x7fff + (word >> 16 & 1)) >> 16;
  }
  static float unpack(uint16_t word) { return bits<float>((uint32_t)word << 16); }
};
struct AsHalf {
  static uint16_t pack(float value) { return _cvtss_sh(value, 0); }
  static float unpack(uint16_t word) { return _cvtsh_ss(word); }
};
template <typename Format> struct Small {
  uint16_t word;
  Small() = default;
  Small(float value) : word(Format::pack(value)) {}
  Small(double value) : word(Format::pack((float)value)) {}
  template <typename I, typename = std::enable_if_t<std::is_integral_v<I>>> Small(I value) : word(Format::pack((float)value)) {}
  operator float() const { return Format::unpack(word); }
  static float unpack(uint16_t word) { return Format::unpack(word); }
  Small &operator+=(Small other) { return *this = Small(float(*this) + float(other)); }
  Small &operator-=(Small other) { return *this = Small(float(*this) - float(other)); }
  Small &operator*=(Small other) { return *this = Small(float(*this) * float(other)); }
  Small &operator/=(Small other) { return *this = Small(float(*this) / float(other)); }
};
using __nv_bfloat16 = Small<AsBfloat16>;
using __half = Small<AsHalf>;
template <typename Format> struct Pair {
  Small<Format> x, y;
  Pair() = default;
  Pair(Small<Format> x, Small<Format> y) : x(x), y(y) {}
  template <typename F> Pair with(Pair other, F of) const { return Pair(of(float(x), float(other.x)), of(float(y), float(other.y))); }
  Pair operator+(Pair other) const { return with(other, [](float a, float b) { return a + b; }); }
  Pair operator-(Pair other) const { return with(other, [](float a, float b) { return a - b; }); }
  Pair operator*(Pair other) const { return with(other, [](float a, float b) { return a * b; }); }
  Pair operator/(Pair other) const { return with(other, [](float a, float b) { return a / b; }); }
  Pair operator-() const { return Pair(-float(x), -float(y)); }
};
using __nv_bfloat162 = Pair<AsBfloat16>;
using __half2 = Pair<AsHalf>;
#define OF_ONE(one, two, value)                                                              \
  template <typename Format> static Small<Format> one(Small<Format> of) {                    \
    float x = of;                                                                            \
    return Small<Format>(float(value));                                                      \
  }                                                                                          \
  template <typename Format> static Pair<Format> two(Pair<Format> of) { return Pair<Format>(one(of.x), one(of.y)); }
OF_ONE(hexp, h2exp, expf(x))
OF_ONE(hlog, h2log, logf(x))
OF_ONE(hsqrt, h2sqrt, sqrtf(x))
OF_ONE(hrsqrt, h2rsqrt, 1 / sqrtf(x))
OF_ONE(hrcp, h2rcp, 1 / x)
OF_ONE(hsin, h2sin, sinf(x))
OF_ONE(hcos, h2cos, cosf(x))
OF_ONE(htanh, h2tanh, tanhf(x))
OF_ONE(hfloor, h2floor, floorf(x))
OF_ONE(hceil, h2ceil, ceilf(x))
OF_ONE(__habs, __habs2, fabsf(x))
#define OF_TWO(one, two, value)                                                              \
  template <typename Format> static Small<Format> one(Small<Format> a, Small<Format> b) {    \
    return Small<Format>(value(float(a), float(b)));                                         \
  }                                                                                          \
  template <typename Format> static Pair<Format> two(Pair<Format> a, Pair<Format> b) {       \
    return Pair<Format>(one(a.x, b.x), one(a.y, b.y));                                       \
  }
OF_TWO(__hmax, __hmax2, fmaxf)
OF_TWO(__hmin, __hmin2, fminf)

// ---- tensor cores, as nvcuda::wmma ----

// The ten bits of mantissa that a product in tf32 looks at.
static inline float cut_to_tf32(float value) { return bits<float>(bits<uint32_t>(value) & ~0x1fffu); }

namespace nvcuda { namespace wmma {
struct matrix_a; struct matrix_b; struct accumulator; struct row_major; struct col_major;
namespace precision { struct tf32; }
enum layout_t { mem_row_major, mem_col_major };
template <typename T> struct Stored { using type = T; };
template <> struct Stored<precision::tf32> { using type = float; };
template <typename Use, int M, int N, int K> struct Tile;
template <int M, int N, int K> struct Tile<matrix_a, M, N, K> { enum { ROWS = M, COLUMNS = K }; };
template <int M, int N, int K> struct Tile<matrix_b, M, N, K> { enum { ROWS = K, COLUMNS = N }; };
template <int M, int N, int K> struct Tile<accumulator, M, N, K> { enum { ROWS = M, COLUMNS = N }; };

// A lane's share of a tile: values in the order of rows, the same number for each lane.
template <typename Use, int M, int N, int K, typename T, typename Layout = void> struct fragment {
  using Value = typename Stored<T>::type;
  enum { ROWS = Tile<Use, M, N, K>::ROWS, COLUMNS = Tile<Use, M, N, K>::COLUMNS, num_elements = ROWS * COLUMNS / 32 };
  Value x[num_elements];
  static int row(int i) { return (lane() * num_elements + i) / COLUMNS; }
  static int column(int i) { return (lane() * num_elements + i) % COLUMNS; }
};
static inline float __float_to_tf32(float value) { return cut_to_tf32(bits<float>(bits<uint32_t>(value) + 0x1000)); }
template <typename F, typename V> void fill_fragment(F &fragment, V value) {
  for (auto &x : fragment.x) x = value;
}
template <typename F, typename P> void load(F &fragment, const P *from, unsigned stride, bool by_rows) {
  __syncwarp();
  for (int i = 0; i < F::num_elements; i++) {
    int row = F::row(i), column = F::column(i);
    fragment.x[i] = by_rows ? from[row * stride + column] : from[column * stride + row];
  }
  __syncwarp();
}
template <typename Use, int M, int N, int K, typename T, typename Layout, typename P>
void load_matrix_sync(fragment<Use, M, N, K, T, Layout> &fragment, const P *from, unsigned stride) {
  load(fragment, from, stride, std::is_same_v<Layout, row_major>);
}
template <int M, int N, int K, typename T, typename P>
void load_matrix_sync(fragment<accumulator, M, N, K, T> &fragment, const P *from, unsigned stride, layout_t layout) {
  load(fragment, from, stride, layout == mem_row_major);
}
template <typename P, int M, int N, int K, typename T>
void store_matrix_sync(P *to, const fragment<accumulator, M, N, K, T> &fragment, unsigned stride, layout_t layout) {
  __syncwarp();
  for (int i = 0; i < fragment.num_elements; i++) {
    int row = fragment.row(i), column = fragment.column(i);
    (layout == mem_row_major ? to[row * stride + column] : to[column * stride + row]) = fragment.x[i];
  }
  __syncwarp();
}
template <typename D, typename A, typename B, typename C> void mma_sync(D &d, const A &a, const B &b, const C &c) {
  struct Both { const A *a; const B *b; };
  say(Both{&a, &b});
  Both of_lane[32];
  for (int i = 0; i < 32; i++) of_lane[i] = heard<Both>(i);
  D result;
  for (int i = 0; i < D::num_elements; i++) {
    float sum = c.x[i];
    for (int k = 0; k < A::COLUMNS; k++) {
      int in_a = D::row(i) * A::COLUMNS + k, in_b = k * B::COLUMNS + D::column(i);
      float x = of_lane[in_a / A::num_elements].a->x[in_a % A::num_elements];
      float y = of_lane[in_b / B::num_elements].b->x[in_b % B::num_elements];
      if (std::is_same_v<typename A::Value, float>) x = cut_to_tf32(x), y = cut_to_tf32(y);
      sum += x * y;
    }
    result.x[i] = sum;
  }
  __syncwarp();
  d = result;
}
} }

// ---- tensor cores by instruction: which lane has which value is in the PTX ISA, 9.7.14 ----

struct Registers { uint32_t a[4], b[2]; };
static inline Registers registers_of(const uint32_t a[4], const uint32_t b[2]) { return {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}; }

template <int K> static void multiply(const float (&a)[16][K], const float (&b)[K][8], const float c[4], float *d[4]) {
  float sums[4];
  for (int i = 0; i < 4; i++) {
    int row = (lane() >> 2) + (i >= 2 ? 8 : 0), column = (lane() & 3) * 2 + i % 2;
    sums[i] = c[i];
    for (int k = 0; k < K; k++) sums[i] += a[row][k] * b[k][column];
  }
  __syncwarp();
  for (int i = 0; i < 4; i++) *d[i] = sums[i];
}
// Two 16-bit numbers in each register.
template <typename T> static void mma_m16n8k16(const uint32_t a[4], const uint32_t b[2], const float c[4], float *d[4]) {
  say(registers_of(a, b));
  float left[16][16], right[16][8];
  for (int of = 0; of < 32; of++) {
    Registers words = heard<Registers>(of);
    int group = of >> 2, place = of & 3;
    auto half = [](uint32_t word, int i) { return T::unpack(word >> 16 * (i % 2) & 0xffff); };
    for (int i = 0; i < 8; i++) left[group + (i / 2 % 2 ? 8 : 0)][place * 2 + i % 2 + (i >= 4 ? 8 : 0)] = half(words.a[i / 2], i);
    for (int i = 0; i < 4; i++) right[place * 2 + i % 2 + (i >= 2 ? 8 : 0)][group] = half(words.b[i / 2], i);
  }
  multiply<16>(left, right, c, d);
}
// One f32 in each register, of which ten bits count.
static void mma_m16n8k8(const uint32_t a[4], const uint32_t b[2], const float c[4], float *d[4]) {
  say(registers_of(a, b));
  float left[16][8], right[8][8];
  for (int of = 0; of < 32; of++) {
    Registers words = heard<Registers>(of);
    int group = of >> 2, place = of & 3;
    for (int i = 0; i < 4; i++) left[group + (i % 2 ? 8 : 0)][place + (i >= 2 ? 4 : 0)] = cut_to_tf32(bits<float>(words.a[i]));
    for (int i = 0; i < 2; i++) right[place + (i ? 4 : 0)][group] = cut_to_tf32(bits<float>(words.b[i]));
  }
  multiply<8>(left, right, c, d);
}
// Tiles of 8 x 8 16-bit numbers; lane 8 t + r names row r of tile t.
static inline int tile_row(bool transposed, int i) { return transposed ? (lane() & 3) * 2 + i : lane() >> 2; }
static inline int tile_column(bool transposed, int i) { return transposed ? lane() >> 2 : (lane() & 3) * 2 + i; }
static void ldmatrix(int count, bool transposed, uint32_t *tiles[], const void *row) {
  say(row);
  uint32_t result[4];
  for (int tile = 0; tile < count; tile++) {
    uint16_t pair[2];
    for (int i = 0; i < 2; i++)
      pair[i] = ((const uint16_t *)heard<const void *>(tile * 8 + tile_row(transposed, i)))[tile_column(transposed, i)];
    result[tile] = pair[0] | (uint32_t)pair[1] << 16;
  }
  __syncwarp();
  for (int tile = 0; tile < count; tile++) *tiles[tile] = result[tile];
}
static void stmatrix(int count, bool transposed, const uint32_t *tiles[], void *row) {
  say(row);
  for (int tile = 0; tile < count; tile++)
    for (int i = 0; i < 2; i++)
      ((uint16_t *)heard<void *>(tile * 8 + tile_row(transposed, i)))[tile_column(transposed, i)] = *tiles[tile] >> 16 * i;
  __syncwarp();
}

// ---- a grid ----

static void call_kernel(void **arguments);
static void **kernel_arguments;
static char *stacks;

static void run_thread() {
  call_kernel(kernel_arguments);
  fibers[current].state = DONE;
  switch_stack(&fibers[current].stack, &scheduler);
  abort();
}

static void release(int from, int to, State state) {
  for (int i = from; i < to; i++)
    if (fibers[i].state == state) fibers[i].state = RUNS;
}

static void run_block(int threads) {
  memset(dynamic_shared_mem, 0xff, 64 << 10); // NaN
  for (int i = 0; i < threads; i++) {
    // Where switch_stack returns to at first, below an address that aligns the stack, with six registers.
    void **top = (void **)(stacks + (size_t)STACK * (i + 1));
    *--top = nullptr;
    *--top = (void *)run_thread;
    for (int k = 0; k < 6; k++) *--top = nullptr;
    fibers[i] = {top, RUNS, {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)}};
  }
  for (int done = 0; done < threads;) {
    bool moved = false;
    int at_block = 0;
    done = 0;
    for (int first = 0; first < threads; first += 32) {
      int end = first + 32 < threads ? first + 32 : threads, alive = 0, at_warp = 0, in_warp = 0;
      for (int i = first; i < end; i++) {
        Fiber &fiber = fibers[i];
        if (fiber.state == RUNS) {
          current = i;
          threadIdx = fiber.thread;
          switch_stack(&scheduler, &fiber.stack);
          moved = true;
        }
        done += fiber.state == DONE;
        alive += fiber.state != DONE;
        at_warp += fiber.state == AT_WARP;
        at_block += fiber.state == AT_BLOCK;
        in_warp += fiber.state == IN_WARP;
      }
      if (in_warp) release(first, end, IN_WARP), moved = true;
      if (at_warp && at_warp == alive) release(first, end, AT_WARP), moved = true;
    }
    if (done < threads && at_block == threads - done) release(0, threads, AT_BLOCK), moved = true;
    if (!moved && done < threads) {
      fprintf(stderr, "emulator: the threads of a block wait at different barriers: %d done, %d of %d at the block's\n", done,
              at_block, threads);
      abort();
    }
  }
}

extern "C" __attribute__((visibility("default"))) void run_grid(unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                                               unsigned block_x, unsigned block_y, unsigned block_z,
                                                               void **arguments) {
  if (!stacks) {
    void *memory = mmap(nullptr, (size_t)STACK * MOST_THREADS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) abort();
    stacks = (char *)memory;
  }
  kernel_arguments = arguments;
  gridDim = {grid_x, grid_y, grid_z};
  blockDim = {block_x, block_y, block_z};
  for (unsigned z = 0; z < grid_z; z++)
    for (unsigned y = 0; y < grid_y; y++)
      for (unsigned x = 0; x < grid_x; x++) {
        blockIdx = {x, y, z};
        run_block(block_x * block_y * block_z);
      }
}
