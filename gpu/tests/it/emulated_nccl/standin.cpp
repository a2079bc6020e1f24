// A library in the place of NCCL, for cards that are not there: communicators whose ranks are
// threads of one process, and whose numbers lie in main memory. What is begun happens later, on a
// thread of each rank, and counts itself up and down behind the handle of the card's queue.
//
// A file beside it, with the ending .mode, says how it behaves: `version N`, `fail-init R`,
// `async R K` (rank R has an error after its K-th batch), `mix` (lengths that differ are no reason to
// wait), `refuse R` (rank R refuses sums), `processes` (ranks are in processes of their own: what one
// brings to a call is a file beside the library, in the folder of its communicator).

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

enum Result { OK = 0, SYSTEM = 2, ARGUMENT = 4, USAGE = 5, IN_PROGRESS = 7 };
enum Kind { ALL_REDUCE, REDUCE, SCATTER, BROADCAST, GATHER, SEND, RECEIVE };

// As the emulated card has it.
struct Stream {
    std::atomic<uint64_t> begun, ended;
};

struct Op {
    Kind kind;
    const void* in;
    void* out;
    size_t count;
    int type, op, peer;
};

struct Batch {
    std::vector<Op> ops;
    Stream* stream;
};

// Where the ranks of one call meet.
struct Meeting {
    std::vector<Op> ops;
    size_t came = 0, read = 0;
    // A rank has given up: nobody may read its numbers any more.
    bool dead = false;
};

struct World {
    std::mutex mutex;
    std::condition_variable moved;
    size_t joined = 0, parted = 0, size = 0;
    std::map<std::string, Meeting> meetings;
};

struct Comm {
    std::shared_ptr<World> world;
    // Where ranks of other processes meet; empty where all are in this one.
    std::string folder;
    int rank = 0;
    std::atomic<int> state{IN_PROGRESS};
    std::atomic<bool> abort{false};
    bool closing = false, parts = false, parted = false;
    std::deque<Batch> queue;
    uint64_t calls = 0, batches = 0;
    std::map<std::pair<int, int>, uint64_t> pairs;
    std::thread thread;
};

std::mutex worlds_mutex;
std::map<std::string, std::shared_ptr<World>> worlds;
uint64_t names = 0;
thread_local int depth = 0;
thread_local std::vector<std::pair<Comm*, Op>> pending;
thread_local Stream* pending_stream = nullptr;

// The file of this library.
std::string own_file() {
    Dl_info info;
    return dladdr(reinterpret_cast<void*>(&own_file), &info) ? info.dli_fname : "";
}

// The words behind one of the mode file, or none.
bool mode(const char* word, std::vector<int>& numbers) {
    std::ifstream file(own_file() + ".mode");
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string first;
        words >> first;
        if (first != word) continue;
        numbers.clear();
        for (int number; words >> number;) numbers.push_back(number);
        return true;
    }
    return false;
}

bool is_rank(const char* word, int rank) {
    std::vector<int> numbers;
    return mode(word, numbers) && !numbers.empty() && numbers[0] == rank;
}

size_t bytes(int type) { return type == 7 ? 4 : 2; }

float widened(const void* from, size_t i, int type) {
    uint32_t bits = 0;
    if (type == 7) memcpy(&bits, static_cast<const char*>(from) + 4 * i, 4);
    else memcpy(reinterpret_cast<char*>(&bits) + 2, static_cast<const char*>(from) + 2 * i, 2);
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// Rounded to the type, as NCCL does after each addition.
float rounded(float value, int type) {
    if (type == 7) return value;
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
    memcpy(&value, &bits, 4);
    return value;
}

void store(std::vector<char>& out, size_t i, float value, int type) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (type == 7) memcpy(&out[4 * i], &bits, 4);
    else memcpy(&out[2 * i], reinterpret_cast<char*>(&bits) + 2, 2);
}

std::vector<char> reduced(const std::vector<Op>& ops, size_t start, size_t count) {
    const int type = ops[0].type, op = ops[0].op;
    std::vector<char> out(count * bytes(type));
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (size_t rank = 0; rank < ops.size(); rank++) {
            float value = widened(ops[rank].in, start + i, type);
            if (op == 4) value = rounded(value * (1.0f / ops.size()), type);
            if (rank == 0) sum = value;
            else if (op == 2) sum = value > sum ? value : sum;
            else if (op == 3) sum = value < sum ? value : sum;
            else sum = rounded(sum + value, type);
        }
        store(out, i, sum, type);
    }
    return out;
}

// Waits until `fact`, or the communicator is aborted. Nobody tells of what other processes do.
bool wait(Comm* comm, std::unique_lock<std::mutex>& lock, const std::function<bool()>& fact) {
    const auto over = [&] { return comm->abort || fact(); };
    auto& moved = comm->world->moved;
    if (comm->folder.empty()) moved.wait(lock, over);
    while (!comm->folder.empty() && !moved.wait_for(lock, std::chrono::milliseconds(1), over)) {}
    return !comm->abort;
}

// A file in the communicator's folder that is there as a whole or not at all.
void leave(Comm* comm, const std::string& name, const std::vector<char>& bytes) {
    const std::string path = comm->folder + "/" + name, half = path + " half";
    std::ofstream(half, std::ios::binary).write(bytes.data(), bytes.size());
    rename(half.c_str(), path.c_str());
}

bool find(Comm* comm, const std::string& name, std::vector<char>& bytes) {
    std::ifstream file(comm->folder + "/" + name, std::ios::binary);
    if (!file) return false;
    bytes.assign(std::istreambuf_iterator<char>(file), {});
    return true;
}

// Every rank has left this, or been counted here.
bool all_have(Comm* comm, const char* what, size_t counted) {
    if (comm->folder.empty()) return counted == comm->world->size;
    std::vector<char> none;
    for (size_t rank = 0; rank < comm->world->size; rank++) {
        if (!find(comm, what + std::to_string(rank), none)) return false;
    }
    return true;
}

bool agree(const std::vector<Op>& ops) {
    std::vector<int> none;
    const bool mix = mode("mix", none);
    for (const Op& op : ops) {
        if (op.kind != ops[0].kind && op.kind < SEND) return false;
        if (!mix && (op.count != ops[0].count || op.type != ops[0].type)) return false;
    }
    return true;
}

// What a rank gets of a call that all have made.
std::vector<char> result(const std::vector<Op>& ops, int rank) {
    const Op* mine = &ops[rank];
    const size_t size = mine->count * bytes(mine->type);
    auto copy = [](const void* from, size_t size) {
        const char* begin = static_cast<const char*>(from);
        return std::vector<char>(begin, begin + size);
    };
    size_t least = mine->count;
    for (const Op& op : ops) least = std::min(least, op.count);
    switch (mine->kind) {
    case ALL_REDUCE: return reduced(ops, 0, least);
    case REDUCE: return rank == mine->peer ? reduced(ops, 0, least) : std::vector<char>();
    case SCATTER: return reduced(ops, rank * mine->count, mine->count);
    case BROADCAST: return copy(ops[mine->peer].in, least * bytes(mine->type));
    case GATHER: {
        std::vector<char> out;
        for (const Op& op : ops) {
            auto part = copy(op.in, size);
            out.insert(out.end(), part.begin(), part.end());
        }
        return out;
    }
    default: return {};
    }
}

// The same among processes: what each brings stays where it is, so nobody waits for readers.
bool meet_apart(Comm* comm, const Op& op, const std::string& name, size_t place, size_t size) {
    const auto file = [&](size_t place) { return name + " of " + std::to_string(place); };
    const size_t parts = op.kind == SCATTER ? comm->world->size : 1;
    const bool brings = op.kind != RECEIVE && (op.kind != BROADCAST || comm->rank == op.peer);
    std::vector<char> own(sizeof op);
    memcpy(own.data(), &op, sizeof op);
    if (brings) {
        const char* begin = static_cast<const char*>(op.in);
        own.insert(own.end(), begin, begin + op.count * bytes(op.type) * parts);
    }
    leave(comm, file(place), own);
    std::vector<std::vector<char>> brought(size);
    std::vector<Op> ops(size);
    const auto all = [&] {
        for (size_t place = 0; place < size; place++) {
            if (!find(comm, file(place), brought[place])) return false;
            memcpy(&ops[place], brought[place].data(), sizeof op);
            ops[place].in = brought[place].data() + sizeof op;
        }
        return agree(ops);
    };
    while (!all()) {
        if (comm->abort) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const char* sent = static_cast<const char*>(ops[0].in);
    if (op.kind == RECEIVE) memcpy(op.out, sent, op.count * bytes(op.type));
    if (op.kind >= SEND) return true;
    const std::vector<char> out = result(ops, comm->rank);
    if (!out.empty()) memcpy(op.out, out.data(), out.size());
    return true;
}

// One call: comes to the meeting, waits for the others, reads theirs, and writes when all have read.
bool meet(Comm* comm, const Op& op, const std::string& name, size_t place, size_t size) {
    if (!comm->folder.empty()) return meet_apart(comm, op, name, place, size);
    World& world = *comm->world;
    std::unique_lock<std::mutex> lock(world.mutex);
    Meeting& meeting = world.meetings[name];
    if (meeting.ops.empty()) meeting.ops.resize(size);
    meeting.ops[place] = op;
    meeting.came++;
    world.moved.notify_all();
    const auto all = [&] { return !meeting.dead && meeting.came == size && agree(meeting.ops); };
    if (!wait(comm, lock, all)) return meeting.dead = true, false;
    std::vector<char> out;
    if (op.kind == RECEIVE) {
        const char* begin = static_cast<const char*>(meeting.ops[0].in);
        out.assign(begin, begin + op.count * bytes(op.type));
    } else if (op.kind != SEND) {
        out = result(meeting.ops, comm->rank);
    }
    meeting.read++;
    world.moved.notify_all();
    if (!wait(comm, lock, [&] { return meeting.read == size; })) return false;
    if (!out.empty()) memcpy(op.out, out.data(), out.size());
    return true;
}

// The calls of a group happen together: sends and receives each on a thread of its own.
bool carry_out(Comm* comm, const Batch& batch) {
    std::vector<std::thread> threads;
    std::atomic<bool> done{true};
    for (const Op& op : batch.ops) {
        if (op.kind < SEND) {
            const std::string name = "all " + std::to_string(++comm->calls);
            if (!meet(comm, op, name, comm->rank, comm->world->size)) done = false;
            continue;
        }
        const bool sends = op.kind == SEND;
        const int from = sends ? comm->rank : op.peer, to = sends ? op.peer : comm->rank;
        const uint64_t turn = ++comm->pairs[{sends ? 0 : 1, op.peer}];
        const std::string name =
            std::to_string(from) + " to " + std::to_string(to) + " " + std::to_string(turn);
        threads.emplace_back([comm, &op, &done, name, sends] {
            if (!meet(comm, op, name, sends ? 0 : 1, 2)) done = false;
        });
    }
    for (auto& thread : threads) thread.join();
    return done;
}

void serve(Comm* comm) {
    World& world = *comm->world;
    std::unique_lock<std::mutex> lock(world.mutex);
    world.joined++;
    world.moved.notify_all();
    if (!comm->folder.empty()) leave(comm, "joined " + std::to_string(comm->rank), {});
    if (wait(comm, lock, [&] { return all_have(comm, "joined ", world.joined); })) comm->state = OK;
    for (;;) {
        world.moved.wait(lock, [&] {
            return comm->abort || comm->closing || comm->parts || !comm->queue.empty();
        });
        if (comm->queue.empty() && !comm->abort) {
            if (comm->parts && !comm->parted) {
                comm->parted = true;
                world.parted++;
                world.moved.notify_all();
                if (!comm->folder.empty()) leave(comm, "parted " + std::to_string(comm->rank), {});
            }
            const auto together = [&] {
                return comm->closing || all_have(comm, "parted ", world.parted);
            };
            if (comm->parts && wait(comm, lock, together)) comm->state = OK;
            if (comm->closing) return;
            if (comm->parts) comm->parts = false;
            continue;
        }
        if (comm->queue.empty()) return;
        Batch batch = std::move(comm->queue.front());
        comm->queue.pop_front();
        comm->batches++;
        // Queued on the card: the host may go on.
        int expected = IN_PROGRESS;
        comm->state.compare_exchange_strong(expected, OK);
        lock.unlock();
        if (!comm->abort) carry_out(comm, batch);
        std::vector<int> numbers;
        if (mode("async", numbers) && numbers.size() == 2 && numbers[0] == comm->rank &&
            comm->batches >= static_cast<uint64_t>(numbers[1])) {
            comm->state = SYSTEM;
        }
        batch.stream->ended++;
        lock.lock();
    }
}

int end_group();

int enqueue(Comm* comm, const Op& op, void* stream) {
    if (!comm || !stream) return ARGUMENT;
    // Strictly as documented: no call while one is in progress.
    if (comm->state != OK) return USAGE;
    if (op.op == 0 && op.kind == ALL_REDUCE && is_rank("refuse", comm->rank)) return ARGUMENT;
    if (op.op < 0 || op.op > 4 || (op.type != 7 && op.type != 9)) return ARGUMENT;
    pending.emplace_back(comm, op);
    pending_stream = static_cast<Stream*>(stream);
    if (depth > 0) return IN_PROGRESS;
    depth = 1;
    return end_group();
}

int end_group() {
    if (depth == 0) return USAGE;
    if (--depth > 0 || pending.empty()) return OK;
    Comm* comm = pending[0].first;
    Batch batch{{}, pending_stream};
    for (auto& call : pending) batch.ops.push_back(call.second);
    pending.clear();
    std::lock_guard<std::mutex> lock(comm->world->mutex);
    batch.stream->begun++;
    comm->state = IN_PROGRESS;
    comm->queue.push_back(std::move(batch));
    comm->world->moved.notify_all();
    return IN_PROGRESS;
}

int end(Comm* comm, bool aborts) {
    {
        std::lock_guard<std::mutex> lock(comm->world->mutex);
        if (aborts) comm->abort = true;
        comm->closing = true;
        comm->world->moved.notify_all();
    }
    comm->thread.join();
    delete comm;
    return OK;
}

}  // namespace

extern "C" {

struct Name { char bytes[128]; };

struct Config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

int ncclGetVersion(int* version) {
    std::vector<int> numbers;
    *version = mode("version", numbers) && !numbers.empty() ? numbers[0] : 22703;
    return OK;
}

int ncclGetUniqueId(Name* name) {
    std::lock_guard<std::mutex> lock(worlds_mutex);
    memset(name->bytes, 0xff, sizeof name->bytes);
    memcpy(name->bytes, &++names, sizeof names);
    const pid_t process = getpid();
    memcpy(name->bytes + sizeof names, &process, sizeof process);
    return OK;
}

const char* ncclGetErrorString(int code) {
    return code == SYSTEM ? "unhandled system error" : code == ARGUMENT ? "invalid argument"
         : code == USAGE ? "invalid usage" : "something else";
}

const char* ncclGetLastError(void*) { return ""; }

int ncclCommInitRankConfig(void** out, int size, Name name, int rank, Config* config) {
    *out = nullptr;
    if (config->magic != 0xcafebeef || config->blocking != 0 || config->version < 21400) return ARGUMENT;
    if (is_rank("fail-init", rank)) return SYSTEM;
    auto* comm = new Comm;
    {
        std::lock_guard<std::mutex> lock(worlds_mutex);
        auto& world = worlds[std::string(name.bytes, sizeof name.bytes)];
        if (!world) world = std::make_shared<World>();
        world->size = size;
        comm->world = world;
    }
    comm->rank = rank;
    std::vector<int> none;
    if (mode("processes", none)) {
        comm->folder = own_file() + " of";
        for (size_t i = 0; i < 12; i++) {
            comm->folder += "-" + std::to_string(static_cast<unsigned char>(name.bytes[i]));
        }
        mkdir(comm->folder.c_str(), 0700);
    }
    comm->thread = std::thread(serve, comm);
    *out = comm;
    return IN_PROGRESS;
}

int ncclCommGetAsyncError(void* comm, int* state) {
    *state = static_cast<Comm*>(comm)->state;
    return OK;
}

int ncclCommFinalize(void* handle) {
    auto* comm = static_cast<Comm*>(handle);
    std::lock_guard<std::mutex> lock(comm->world->mutex);
    if (comm->state != OK) return USAGE;
    comm->state = IN_PROGRESS;
    comm->parts = true;
    comm->world->moved.notify_all();
    return IN_PROGRESS;
}

int ncclCommDestroy(void* comm) { return end(static_cast<Comm*>(comm), false); }
int ncclCommAbort(void* comm) { return end(static_cast<Comm*>(comm), true); }
int ncclGroupStart() { return depth++, OK; }
int ncclGroupEnd() { return end_group(); }

int ncclAllReduce(const void* in, void* out, size_t n, int type, int op, void* comm, void* stream) {
    return enqueue(static_cast<Comm*>(comm), {ALL_REDUCE, in, out, n, type, op, 0}, stream);
}
int ncclReduce(const void* in, void* out, size_t n, int type, int op, int root, void* comm, void* stream) {
    return enqueue(static_cast<Comm*>(comm), {REDUCE, in, out, n, type, op, root}, stream);
}
int ncclReduceScatter(const void* in, void* out, size_t n, int type, int op, void* comm, void* stream) {
    return enqueue(static_cast<Comm*>(comm), {SCATTER, in, out, n, type, op, 0}, stream);
}
int ncclBroadcast(const void* in, void* out, size_t n, int type, int root, void* comm, void* stream) {
    return enqueue(static_cast<Comm*>(comm), {BROADCAST, in, out, n, type, 0, root}, stream);
}
int ncclAllGather(const void* in, void* out, size_t n, int type, void* comm, void* stream) {
    return enqueue(static_cast<Comm*>(comm), {GATHER, in, out, n, type, 0, 0}, stream);
}
int ncclSend(const void* in, size_t n, int type, int peer, void* comm, void* stream) {
    return enqueue(static_cast<Comm*>(comm), {SEND, in, nullptr, n, type, 0, peer}, stream);
}
int ncclRecv(void* out, size_t n, int type, int peer, void* comm, void* stream) {
    return enqueue(static_cast<Comm*>(comm), {RECEIVE, nullptr, out, n, type, 0, peer}, stream);
}

}  // extern "C"
