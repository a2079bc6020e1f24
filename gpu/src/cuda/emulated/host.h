// What the kernels need of a device, on a processor. Each thread of a block is a fiber; a fiber
// gives way where the device would wait for others: at a barrier, a shuffle, a product of tiles.
// Between two such places fibers run one after the other, forwards or backwards, so that a missing
// barrier shows as a wrong result in one of the two orders. Copies that a kernel begins land when
// it waits for them, not before. Waiting for a thread that has ended, or that waits elsewhere, ends
// the launch with an error, and so does an access outside of memory.

#include <csetjmp>
#include <csignal>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <tuple>
#include <vector>

#define ODEON_HOST 1
#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}
struct dim3 { unsigned x, y, z; };

static inline float __int_as_float(int v) { float f; memcpy(&f, &v, 4); return f; }
static inline float __uint_as_float(unsigned v) { float f; memcpy(&f, &v, 4); return f; }
static inline unsigned __float_as_uint(float f) { unsigned v; memcpy(&v, &f, 4); return v; }

namespace odeon {

enum Outcome { ENDED = 0, OUTSIDE = 1, STUCK = 2, ARGUMENTS = 3, NO_MEMORY = 4 };

// As `Arg` in card.rs.
struct Arg { uint32_t kind; uint32_t unused; uint64_t bits; };

struct Launch {
    uint32_t grid[3];
    uint32_t block;
    uint32_t shared;
    uint32_t backwards;
    uint32_t count;
    const Arg* args;
    uint64_t outside;
};

struct Copy { void* to; const void* from; bool live; };

struct Fiber {
    void* stack_pointer;
    unsigned thread;
    bool ended;
    unsigned barriers, meetings; // passed so far, of the block and of the warp
    std::deque<std::vector<Copy>> groups;
    std::vector<Copy> open;
};

struct Warp {
    unsigned arrived, meetings;
    // One place a lane and parity: a lane may enter the next meeting before others read this one.
    alignas(16) unsigned char slots[2][32][64];
};

struct Block {
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<unsigned char> stacks;
    unsigned arrived, barriers;
    void* scheduler;
    Fiber* now;
    dim3 index, size, grid;
    unsigned char* shared;
    void (*body)(void*);
    void* context;
    uint64_t steps;
};

static thread_local Block* block = nullptr;
static thread_local sigjmp_buf escape;
static thread_local volatile bool running = false;
static thread_local volatile uint64_t outside = 0;
static struct sigaction previous;

constexpr size_t STACK = 128 << 10;

#if !defined(__x86_64__)
#error "the emulated card switches stacks by hand and knows x86-64 only"
#endif

extern "C" void odeon_switch(void** save, void* load);
asm(R"(
.text
.local odeon_switch
.type odeon_switch, @function
odeon_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size odeon_switch, .-odeon_switch
)");

static __attribute__((noinline)) void give_way() {
    Block* b = block;
    odeon_switch(&b->now->stack_pointer, b->scheduler);
}

static void finish_copies(Fiber* f, size_t left) {
    while (f->groups.size() > left) {
        for (Copy& c : f->groups.front()) {
            if (c.live) memcpy(c.to, c.from, 16); else memset(c.to, 0, 16);
        }
        f->groups.pop_front();
    }
}

static void fiber_main() {
    block->body(block->context);
    Fiber* f = block->now;
    f->ended = true;
    block->steps++;
    give_way();
    abort();
}

// Waits for the whole block.
static inline void barrier() {
    Block* b = block;
    Fiber* f = b->now;
    f->barriers++;
    b->steps++;
    if (++b->arrived == b->size.x) {
        b->arrived = 0;
        b->barriers++;
    } else {
        while (b->barriers < f->barriers) give_way();
    }
}

// Gives `bytes` to the lanes of the warp, waits for all of them, and says where their slots are.
static inline unsigned char (*meet(const void* bytes, size_t length))[64] {
    Block* b = block;
    Fiber* f = b->now;
    Warp* w = &b->warps[f->thread / 32];
    unsigned parity = f->meetings & 1;
    memcpy(w->slots[parity][f->thread % 32], bytes, length);
    f->meetings++;
    b->steps++;
    if (++w->arrived == 32) {
        w->arrived = 0;
        w->meetings++;
    } else {
        while (w->meetings < f->meetings) give_way();
    }
    return w->slots[parity];
}

static void on_fault(int signal, siginfo_t* info, void* context) {
    if (running) {
        outside = (uint64_t)info->si_addr;
        siglongjmp(escape, OUTSIDE);
    }
    // Not ours: perhaps of another library that was made of this header.
    if (previous.sa_flags & SA_SIGINFO) return previous.sa_sigaction(signal, info, context);
    sigaction(signal, &previous, nullptr); // let it strike again
}

static void run_block(Block* b, bool backwards) {
    unsigned count = b->size.x;
    b->arrived = b->barriers = 0;
    for (Warp& w : b->warps) w.arrived = w.meetings = 0;
    for (unsigned i = 0; i < count; ++i) {
        Fiber& f = b->fibers[i];
        f.thread = i;
        f.ended = false;
        f.barriers = f.meetings = 0;
        f.groups.clear();
        f.open.clear();
        uintptr_t top = ((uintptr_t)b->stacks.data() + (i + 1) * STACK) & ~(uintptr_t)63;
        void** sp = (void**)top;
        *--sp = nullptr;             // where fiber_main would return to
        *--sp = (void*)&fiber_main;
        for (int r = 0; r < 6; ++r) *--sp = nullptr;
        f.stack_pointer = sp;
    }
    unsigned left = count;
    while (left > 0) {
        uint64_t steps = b->steps;
        for (unsigned n = 0; n < count; ++n) {
            Fiber* f = &b->fibers[backwards ? count - 1 - n : n];
            if (f->ended) continue;
            b->now = f;
            odeon_switch(&b->scheduler, f->stack_pointer);
            if (f->ended) --left;
        }
        if (b->steps == steps) siglongjmp(escape, STUCK);
    }
}

// Runs `body` for every thread of the grid. `shared` ends at a page that cannot be touched.
static int run(Launch* launch, unsigned char* shared, void (*body)(void*), void* context) {
    static const bool handled = [] {
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigaction(SIGBUS, &action, nullptr);
        return sigaction(SIGSEGV, &action, &previous) == 0;
    }();
    if (!handled || launch->block == 0 || launch->block > 1024 || launch->block % 32 != 0)
        return ARGUMENTS;
    static thread_local Block* kept = new Block();
    Block* b = block = kept;
    b->size = {launch->block, 1, 1};
    b->grid = {launch->grid[0], launch->grid[1], launch->grid[2]};
    b->fibers.resize(launch->block);
    b->warps.resize(launch->block / 32);
    b->stacks.resize(launch->block * STACK);
    b->shared = shared;
    b->body = body;
    b->context = context;
    int outcome = sigsetjmp(escape, 1);
    if (outcome == 0) {
        running = true;
        uint64_t blocks = (uint64_t)b->grid.x * b->grid.y * b->grid.z;
        for (uint64_t n = 0; n < blocks; ++n) {
            uint64_t i = launch->backwards ? blocks - 1 - n : n;
            b->index = {(unsigned)(i % b->grid.x), (unsigned)(i / b->grid.x % b->grid.y),
                        (unsigned)(i / b->grid.x / b->grid.y)};
            run_block(b, launch->backwards);
        }
    }
    running = false;
    launch->outside = outside;
    return outcome;
}

template <class T> struct KindOf;
template <class T> struct KindOf<T*> { static constexpr uint32_t value = 0; };
template <> struct KindOf<unsigned> { static constexpr uint32_t value = 1; };
template <> struct KindOf<float> { static constexpr uint32_t value = 2; };
template <> struct KindOf<unsigned long long> { static constexpr uint32_t value = 3; };

template <class T> static T taken(const Arg& arg) {
    T value;
    memcpy(&value, &arg.bits, sizeof(T));
    return value;
}

template <class... A, size_t... I>
static int invoke(void (*kernel)(A...), Launch* launch, unsigned char* shared,
                  std::index_sequence<I...>) {
    if (launch->count != sizeof...(A)) return ARGUMENTS;
    if (!((launch->args[I].kind == KindOf<A>::value) && ...)) return ARGUMENTS;
    struct Context { void (*kernel)(A...); std::tuple<A...> args; };
    Context context = {kernel, {taken<A>(launch->args[I])...}};
    return run(launch, shared, [](void* c) {
        auto* context = (Context*)c;
        std::apply(context->kernel, context->args);
    }, &context);
}

template <class... A>
static int launch(void (*kernel)(A...), Launch* l, unsigned char* shared) {
    return invoke(kernel, l, shared, std::index_sequence_for<A...>());
}

} // namespace odeon

#define threadIdx (dim3{odeon::block->now->thread, 0, 0})
#define blockIdx (odeon::block->index)
#define blockDim (odeon::block->size)
#define gridDim (odeon::block->grid)
#define DYNAMIC_SHARED(T, name) T* name = reinterpret_cast<T*>(odeon::block->shared)

static inline void __syncthreads() { odeon::barrier(); }

template <class T> static inline T __shfl_sync(unsigned, T v, unsigned lane) {
    T got;
    memcpy(&got, odeon::meet(&v, sizeof(T))[lane & 31], sizeof(T));
    return got;
}

template <class T> static inline T __shfl_xor_sync(unsigned, T v, unsigned mask) {
    unsigned lane = odeon::block->now->thread & 31;
    T got;
    memcpy(&got, odeon::meet(&v, sizeof(T))[lane ^ mask], sizeof(T));
    return got;
}

static inline unsigned short odeon_round_bf16(float x) {
    unsigned bits = __float_as_uint(x);
    if (x != x) return 0x7fff;
    return (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline float odeon_half(unsigned pair, int high) {
    return __uint_as_float(high ? pair & 0xffff0000u : pair << 16);
}

static inline void odeon_mma_bf16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    unsigned char (*slots)[64] = odeon::meet(mine, sizeof(mine));
    unsigned lane = odeon::block->now->thread & 31, g = lane / 4, t = lane % 4;
    for (int e = 0; e < 4; ++e) {
        unsigned row = g + (e >> 1) * 8, column = 2 * t + (e & 1);
        float sum = c[e];
        for (unsigned k = 0; k < 16; ++k) {
            unsigned word[6];
            memcpy(word, slots[row % 8 * 4 + k % 8 / 2], sizeof(word));
            float x = odeon_half(word[row / 8 + k / 8 * 2], k & 1);
            memcpy(word, slots[column * 4 + k % 8 / 2], sizeof(word));
            sum += x * odeon_half(word[4 + k / 8], k & 1);
        }
        c[e] = sum;
    }
}

static inline void odeon_load_tiles(unsigned (&r)[4], const unsigned short* row, bool turned) {
    unsigned char (*slots)[64] = odeon::meet(&row, sizeof(row));
    unsigned lane = odeon::block->now->thread & 31;
    for (unsigned i = 0; i < 4; ++i) {
        unsigned short pair[2];
        for (unsigned e = 0; e < 2; ++e) {
            unsigned at = lane % 4 * 2 + e, across = lane / 4;
            const unsigned short* from;
            memcpy(&from, slots[8 * i + (turned ? at : across)], sizeof(from));
            if ((uintptr_t)from % 16 != 0) siglongjmp(odeon::escape, odeon::OUTSIDE);
            pair[e] = from[turned ? across : at];
        }
        r[i] = pair[0] | (unsigned)pair[1] << 16;
    }
}

static inline void odeon_copy16_begin(void* to, const void* from, bool live) {
    if (((uintptr_t)to | (uintptr_t)from) % 16 != 0) siglongjmp(odeon::escape, odeon::OUTSIDE);
    odeon::block->now->open.push_back({to, from, live});
}

static inline void odeon_copy16_group() {
    odeon::Fiber* f = odeon::block->now;
    f->groups.push_back(std::move(f->open));
    f->open.clear();
}

static inline void odeon_copy16_wait(int left) {
    odeon::finish_copies(odeon::block->now, left);
}

// Memory. Every block ends, but for less than 16 bytes, at a page that cannot be touched, and a
// page before it cannot be touched either. What it holds at first are no numbers.

#include <map>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

namespace odeon {

struct Held { unsigned char* base; uint64_t pages; uint64_t bytes; };

static std::mutex memory_lock;
static std::map<uint64_t, Held> memory;

static unsigned char filler(uint64_t i) { return (unsigned char)(0xf0 | (i & 7)); }

static uint64_t take(uint64_t bytes) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), room = (bytes + 15) / 16 * 16;
    uint64_t pages = (room + page - 1) / page;
    void* base = mmap(nullptr, (pages + 2) * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return 0;
    unsigned char* inside = (unsigned char*)base + page;
    if (mprotect(inside, pages * page, PROT_READ | PROT_WRITE) != 0) return 0;
    memset(inside, 0xff, pages * page);
    unsigned char* at = inside + pages * page - room;
    for (uint64_t i = bytes; i < room; ++i) at[i] = filler(i);
    std::lock_guard<std::mutex> held(memory_lock);
    memory[(uint64_t)at] = {(unsigned char*)base, pages + 2, bytes};
    return (uint64_t)at;
}

// Whether the bytes after the block are as they were.
static bool sound(uint64_t address, const Held& held) {
    const unsigned char* at = (const unsigned char*)address;
    for (uint64_t i = held.bytes; i < (held.bytes + 15) / 16 * 16; ++i)
        if (at[i] != filler(i)) return false;
    return true;
}

static unsigned char* shared_memory(uint64_t bytes) {
    static thread_local std::map<uint64_t, uint64_t> kept;
    uint64_t& at = kept[bytes];
    if (at == 0) at = take(bytes);
    return (unsigned char*)at;
}

} // namespace odeon

extern "C" uint64_t odeon_take(uint64_t bytes) { return odeon::take(bytes); }

// 0: given back; 1: no such block; 2: somebody wrote behind its end.
extern "C" int odeon_give(uint64_t address) {
    std::lock_guard<std::mutex> lock(odeon::memory_lock);
    auto at = odeon::memory.find(address);
    if (at == odeon::memory.end()) return 1;
    bool sound = odeon::sound(address, at->second);
    munmap(at->second.base, at->second.pages * (uint64_t)sysconf(_SC_PAGESIZE));
    odeon::memory.erase(at);
    return sound ? 0 : 2;
}

// Whether all of the bytes lie in one block.
extern "C" int odeon_holds(uint64_t address, uint64_t bytes) {
    std::lock_guard<std::mutex> lock(odeon::memory_lock);
    auto after = odeon::memory.upper_bound(address);
    if (after == odeon::memory.begin()) return 0;
    auto at = std::prev(after);
    return address + bytes <= at->first + at->second.bytes;
}
