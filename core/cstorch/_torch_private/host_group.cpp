// A process group whose members are processes of one host: what they exchange goes through memory that all have mapped.
//
// Each member posts pieces of a tensor in a ring of its own, and each adds up the pieces of all by itself, in the order
// of the ranks, so that all get the same bits. Posting does not wait for the others, so a collective is under way
// between its start and the wait for it. Messages go through a ring for each pair of members.
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kPage = 4096;
constexpr size_t kPiece = 256 << 10;  // small enough for the second level cache
constexpr uint64_t kPosted = 64;      // pieces in the ring of a member: two buckets of gradients
constexpr uint64_t kMessages = 16;    // pieces in the ring of a pair
constexpr auto kLook = milliseconds(50);  // how often a member that sleeps looks whether the others live
constexpr auto kSpin = std::chrono::microseconds(200);

struct alignas(64) Counter {
  std::atomic<uint64_t> value;
};

struct Shared {
  alignas(64) std::atomic<uint32_t> events;
  alignas(64) std::atomic<uint32_t> sleepers;
};

// Where everything lies in the memory of a group of `size` members. It begins as zeros.
struct Places {
  size_t size;
  size_t counters() const { return 2 * size + 3 * size * size; }
  size_t rings() const { return (sizeof(Shared) + counters() * sizeof(Counter) + kPage - 1) / kPage * kPage; }
  size_t pair(size_t from, size_t to) const { return from * size + to; }
  size_t bytes() const { return rings() + size * kPosted * kPiece + size * size * kMessages * kPiece; }
};

class Memory {
 public:
  Memory(int file, size_t size) : places_{size} {
    void* start = mmap(nullptr, places_.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    TORCH_CHECK(start != MAP_FAILED, "the memory of the group cannot be mapped");
    start_ = static_cast<char*>(start);
  }
  ~Memory() { munmap(start_, places_.bytes()); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  Shared& shared() { return *reinterpret_cast<Shared*>(start_); }
  std::atomic<uint64_t>& posted(size_t rank) { return counter(rank); }
  std::atomic<uint64_t>& left(size_t rank) { return counter(places_.size + rank); }
  std::atomic<uint64_t>& used(size_t rank, size_t by) { return counter(2 * places_.size + places_.pair(rank, by)); }
  std::atomic<uint64_t>& sent(size_t from, size_t to) {
    return counter(2 * places_.size + places_.size * places_.size + places_.pair(from, to));
  }
  std::atomic<uint64_t>& received(size_t from, size_t to) {
    return counter(2 * places_.size + 2 * places_.size * places_.size + places_.pair(from, to));
  }
  char* post(size_t rank, uint64_t piece) {
    return start_ + places_.rings() + (rank * kPosted + piece % kPosted) * kPiece;
  }
  char* message(size_t from, size_t to, uint64_t piece) {
    const size_t before = places_.rings() + places_.size * kPosted * kPiece;
    return start_ + before + (places_.pair(from, to) * kMessages + piece % kMessages) * kPiece;
  }

 private:
  std::atomic<uint64_t>& counter(size_t index) {
    return reinterpret_cast<Counter*>(start_ + sizeof(Shared))[index].value;
  }

  Places places_;
  char* start_;
};

template <typename T>
void add(T* to, const T* from, size_t count, bool max) {
  if (max) {
    for (size_t i = 0; i < count; ++i) to[i] = std::max(to[i], from[i]);
  } else {
    for (size_t i = 0; i < count; ++i) to[i] += from[i];
  }
}

void combine(at::ScalarType type, char* to, const char* from, size_t bytes, bool max) {
  switch (type) {
    case at::kFloat: return add(reinterpret_cast<float*>(to), reinterpret_cast<const float*>(from), bytes / 4, max);
    case at::kDouble: return add(reinterpret_cast<double*>(to), reinterpret_cast<const double*>(from), bytes / 8, max);
    case at::kLong: return add(reinterpret_cast<int64_t*>(to), reinterpret_cast<const int64_t*>(from), bytes / 8, max);
    case at::kByte: return add(reinterpret_cast<uint8_t*>(to), reinterpret_cast<const uint8_t*>(from), bytes, max);
    default: TORCH_CHECK(false, "systems of one host do not exchange numbers of type ", type);
  }
}

// A collective that has been started.
struct Exchange {
  at::Tensor input;   // what this member gives
  at::Tensor output;  // the same memory when it is a reduction
  bool gathers;
  bool max;
  uint64_t first;       // its first piece, counted over all collectives of the group
  uint64_t pieces;
  uint64_t posted = 0;  // by this member
  uint64_t done = 0;

  char* own(uint64_t piece) const { return static_cast<char*>(input.data_ptr()) + piece * kPiece; }
  size_t length(uint64_t piece) const { return std::min(kPiece, input.nbytes() - piece * kPiece); }
};

class HostGroup;

class Pending final : public c10d::Work {
 public:
  Pending(c10::intrusive_ptr<HostGroup> group, std::shared_ptr<Exchange> exchange, c10d::OpType type)
      : Work(-1, type), group_(std::move(group)), exchange_(std::move(exchange)) {}
  bool isCompleted() override { return exchange_->done == exchange_->pieces; }
  bool isSuccess() const override { return exchange_->done == exchange_->pieces; }
  bool wait(milliseconds timeout) override;

 private:
  c10::intrusive_ptr<HostGroup> group_;
  std::shared_ptr<Exchange> exchange_;
};

class Message final : public c10d::Work {
 public:
  Message(c10::intrusive_ptr<HostGroup> group, at::Tensor tensor, int peer, bool sends)
      : Work(-1, sends ? c10d::OpType::SEND : c10d::OpType::RECV), group_(std::move(group)), tensor_(std::move(tensor)),
        peer_(peer), done_(sends) {}
  bool isCompleted() override { return done_; }
  bool isSuccess() const override { return done_; }
  bool wait(milliseconds timeout) override;

 private:
  c10::intrusive_ptr<HostGroup> group_;
  at::Tensor tensor_;
  int peer_;
  bool done_;
};

class HostGroup final : public c10d::Backend {
 public:
  HostGroup(int file, int rank, int size, std::vector<int> lives, milliseconds timeout)
      : Backend(rank, size), memory_(file, size), lives_(std::move(lives)), timeout_(timeout) {
    cpu_set_t allowed;
    spins_ = sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) >= size;
  }

  ~HostGroup() override {
    if (getpid() == owner_) {  // not in a fork
      memory_.left(rank_).store(1);
      tell();
    }
    for (int life : lives_) {
      if (life >= 0) close(life);
    }
  }

  const std::string getBackendName() const override { return "cstorch-host"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    TORCH_CHECK(tensors.size() == 1, "systems of one host reduce one tensor at a time");
    const bool max = options.reduceOp == c10d::ReduceOp::MAX;
    TORCH_CHECK(max || options.reduceOp == c10d::ReduceOp::SUM, "systems of one host take sums and maxima");
    return start(tensors[0], tensors[0], false, max, c10d::OpType::ALLREDUCE);
  }

  // The functional all_gather of one tensor.
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs, const c10d::AllgatherOptions&) override {
    TORCH_CHECK(inputs.size() == 1, "systems of one host gather one tensor at a time");
    return start(inputs[0], outputs.at(0), true, false, c10d::OpType::_ALLGATHER_BASE);
  }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int) override {
    const at::Tensor& tensor = checked(tensors.at(0));
    const char* data = static_cast<const char*>(tensor.data_ptr());
    auto& sent = memory_.sent(rank_, to);
    for (size_t place = 0; place < tensor.nbytes(); place += kPiece) {
      const uint64_t piece = sent.load();
      wait([&] { return piece - memory_.received(rank_, to).load() < kMessages; }, timeout_);
      std::memcpy(memory_.message(rank_, to, piece), data + place, std::min(kPiece, tensor.nbytes() - place));
      sent.store(piece + 1);
      tell();
    }
    return c10::make_intrusive<Message>(self(), tensor, to, true);
  }

  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int) override {
    return c10::make_intrusive<Message>(self(), checked(tensors.at(0)), from, false);
  }

  void receive(at::Tensor& tensor, int from, milliseconds timeout) {
    char* data = static_cast<char*>(tensor.data_ptr());
    auto& received = memory_.received(from, rank_);
    for (size_t place = 0; place < tensor.nbytes(); place += kPiece) {
      const uint64_t piece = received.load();
      wait([&] { return memory_.sent(from, rank_).load() > piece; }, timeout);
      std::memcpy(data + place, memory_.message(from, rank_, piece), std::min(kPiece, tensor.nbytes() - place));
      received.store(piece + 1);
      tell();
    }
  }

  void finish(const Exchange& exchange, milliseconds timeout) {
    std::lock_guard<std::mutex> lock(mutex_);
    while (exchange.done < exchange.pieces) {  // those that were started before it come first, as on all members
      turn(*under_way_.front(), timeout);
      if (under_way_.front()->done == under_way_.front()->pieces) under_way_.pop_front();
    }
  }

 private:
  c10::intrusive_ptr<HostGroup> self() { return c10::intrusive_ptr<HostGroup>::unsafe_reclaim_from_nonowning(this); }

  static const at::Tensor& checked(const at::Tensor& tensor) {
    TORCH_CHECK(tensor.is_cpu() && tensor.is_contiguous(), "systems of one host exchange contiguous tensors");
    return tensor;
  }

  c10::intrusive_ptr<c10d::Work> start(const at::Tensor& input, const at::Tensor& output, bool gathers, bool max, c10d::OpType type) {
    auto made = std::make_shared<Exchange>();
    made->input = checked(input), made->output = checked(output);
    made->gathers = gathers, made->max = max;
    made->pieces = (input.nbytes() + kPiece - 1) / kPiece;
    std::lock_guard<std::mutex> lock(mutex_);
    made->first = next_;
    next_ += made->pieces;
    if (made->pieces != 0) under_way_.push_back(made);
    post();
    return c10::make_intrusive<Pending>(self(), made, type);
  }

  // Posts as much as the ring has room for.
  void post() {
    uint64_t room = UINT64_MAX;
    for (int rank = 0; rank < size_; ++rank) room = std::min(room, memory_.used(rank_, rank).load());
    room += kPosted;
    for (auto& exchange : under_way_) {
      while (exchange->posted < exchange->pieces) {
        const uint64_t piece = exchange->first + exchange->posted;
        if (piece >= room) return;
        std::memcpy(memory_.post(rank_, piece), exchange->own(exchange->posted), exchange->length(exchange->posted));
        ++exchange->posted;
        memory_.posted(rank_).store(piece + 1);
        tell();
      }
    }
  }

  // Does one piece of an exchange.
  void turn(Exchange& exchange, milliseconds timeout) {
    const uint64_t piece = exchange.first + exchange.done;
    wait([&] {
      if (exchange.posted == exchange.done) post();
      for (int rank = 0; rank < size_; ++rank) {
        if (memory_.posted(rank).load() <= piece) return false;
      }
      return true;
    }, timeout);
    const size_t length = exchange.length(exchange.done);
    if (exchange.gathers) {
      char* to = static_cast<char*>(exchange.output.data_ptr()) + exchange.done * kPiece;
      for (int rank = 0; rank < size_; ++rank) std::memcpy(to + rank * exchange.input.nbytes(), memory_.post(rank, piece), length);
    } else {
      char* to = exchange.own(exchange.done);
      const at::ScalarType type = exchange.output.scalar_type();
      // a sum of two is the same in either order; of more it is begun with that of rank 0
      if (size_ > 2 && rank_ != 0) std::memcpy(to, memory_.post(0, piece), length);
      const int others = size_ > 2 ? 1 : 0;
      for (int rank = others; rank < size_; ++rank) {
        if (size_ > 2 || rank != rank_) combine(type, to, memory_.post(rank, piece), length, exchange.max);
      }
    }
    ++exchange.done;
    for (int rank = 0; rank < size_; ++rank) memory_.used(rank, rank_).store(piece + 1);
    tell();
    post();
  }

  // Wakes members that sleep.
  void tell() {
    memory_.shared().events.fetch_add(1);
    if (memory_.shared().sleepers.load() != 0) syscall(SYS_futex, &memory_.shared().events, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }

  template <typename Condition>
  void wait(Condition condition, milliseconds timeout) {
    if (condition()) return;
    const auto begin = Clock::now();
    while (spins_ && Clock::now() - begin < kSpin) {
      sched_yield();
      if (condition()) return;
    }
    auto& shared = memory_.shared();
    timespec look{0, std::chrono::nanoseconds(kLook).count()};
    while (true) {
      shared.sleepers.fetch_add(1);
      const uint32_t seen = shared.events.load();
      const bool met = condition();
      if (!met) syscall(SYS_futex, &shared.events, FUTEX_WAIT, seen, &look, nullptr, 0);
      shared.sleepers.fetch_sub(1);
      if (met || condition()) return;
      refuse_alone();
      if (Clock::now() - begin > timeout) {
        TORCH_CHECK(false, "Timed out waiting ", timeout.count(), "ms for another process of this host");
      }
    }
  }

  // An error when another member is gone. What it has posted before may be there nevertheless.
  void refuse_alone() {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      pollfd life{lives_[rank], POLLIN, 0};
      const bool ended = lives_[rank] >= 0 && poll(&life, 1, 0) > 0;
      TORCH_CHECK(!ended && memory_.left(rank).load() == 0, "Connection closed by peer: process ", rank, " of this host is gone");
    }
  }

  Memory memory_;
  std::vector<int> lives_;
  milliseconds timeout_;
  bool spins_;
  const pid_t owner_ = getpid();
  std::mutex mutex_;
  std::deque<std::shared_ptr<Exchange>> under_way_;
  uint64_t next_ = 0;

  friend class Pending;
  friend class Message;
};

bool Pending::wait(milliseconds timeout) {
  group_->finish(*exchange_, timeout == kNoTimeout ? group_->timeout_ : timeout);
  return true;
}

bool Message::wait(milliseconds timeout) {
  if (!done_) group_->receive(tensor_, peer_, timeout == kNoTimeout ? group_->timeout_ : timeout);
  done_ = true;
  return true;
}

thread_local std::string problem;

}  // namespace

extern "C" size_t cstorch_host_group_bytes(int size) { return Places{static_cast<size_t>(size)}.bytes(); }

// Lets the group that is registered as `name` exchange tensors of the cpu through the memory in `file`. `lives` has a
// file for each member that can be read once it has ended; they are closed with the group. Returns what went wrong.
extern "C" const char* cstorch_host_group(const char* name, int file, int rank, int size, const int* lives, int64_t timeout) {
  try {
    auto group = c10d::resolve_process_group(name);
    auto made = c10::make_intrusive<HostGroup>(file, rank, size, std::vector<int>(lives, lives + size), milliseconds(timeout));
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, made);
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    return nullptr;
  } catch (const std::exception& error) {
    problem = error.what();
    return problem.c_str();
  }
}
