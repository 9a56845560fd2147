// Times one kernel object the way a serving step uses it: every call of a step once, in order, each with its
// own prepared constants, so that weights far bigger than the cache stream through it as in a server.
// Commands on stdin, one a line, answers on stdout, one line of JSON each. Trusted code; the kernel is ours.
//
//   data PATH                             file with the bytes of all inputs
//   load PATH                             the kernel object
//   threads N      huge 0|1               threads handed to rf_run; MADV_HUGEPAGE for prepared states
//   state COUNT N_CONSTS tensor...        prepares COUNT states from the same constants
//   call BATCH LABEL STATE COPY N_IN tensor... N_OUT tensor...    appends a call to the step of that batch
//   time BATCH REPS GIVE_UP_US            runs the step REPS times and times every call; stops early
//                                         when the quickest of each call together take longer
//   bandwidth BYTES                       best read rate of `threads` threads over fresh memory
//   output BATCH LABEL PATH               runs that label's first call on poisoned outputs, writes them
//   quit
// tensor: DTYPE NDIM DIM... OFFSET (bytes in the data file for inputs; outputs get their own memory, OFFSET 0)
#include "rackforge_kernel.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

double now_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

[[noreturn]] void fail(const std::string &why) {
  std::cout << "{\"error\": \"" << why << "\"}" << std::endl;
  std::exit(3);
}

int64_t item_bytes(int32_t dtype) {
  switch (dtype) {
    case RF_FLOAT64: case RF_INT64: return 8;
    case RF_FLOAT32: case RF_INT32: return 4;
    case RF_BFLOAT16: case RF_FLOAT16: return 2;
    default: return 1;
  }
}

int64_t bytes_of(const rf_tensor &t) {
  int64_t count = 1;
  for (int i = 0; i < t.ndim; ++i) count *= t.shape[i];
  return count * item_bytes(t.dtype);
}

void *reserve(int64_t bytes, bool huge) {
  const int64_t align = 2 << 20;
  const int64_t whole = (bytes + align - 1) / align * align + align;
  char *p = static_cast<char *>(
      mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (p == MAP_FAILED) fail("out of memory");
  p += (align - reinterpret_cast<uintptr_t>(p) % align) % align;
  if (huge) madvise(p, whole - align, MADV_HUGEPAGE);
  return p;
}

struct Step {
  std::string label;
  std::vector<rf_tensor> in, out;
  const void *state;
};

char *data = nullptr;
std::vector<std::vector<void *>> states;
std::map<long, std::vector<Step>> steps;
int32_t threads = 1;
bool huge = false;
decltype(&rf_run) run_kernel = nullptr;
decltype(&rf_prepare) prepare = nullptr;
decltype(&rf_prepare_bytes) prepare_bytes = nullptr;

rf_tensor read_tensor(std::istringstream &in, bool output) {
  rf_tensor t;
  std::memset(&t, 0, sizeof t);
  int64_t offset = 0;
  in >> t.dtype >> t.ndim;
  for (int i = 0; i < t.ndim; ++i) in >> t.shape[i];
  in >> offset;
  int64_t stride = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    t.stride[i] = stride;
    stride *= t.shape[i];
  }
  t.data = output ? reserve(bytes_of(t) + 64, false) : data + offset;
  return t;
}

void call(Step &s) {
  const int32_t status = run_kernel(s.in.data(), static_cast<int32_t>(s.in.size()), s.out.data(),
                                    static_cast<int32_t>(s.out.size()), s.state, threads);
  if (status != RF_OK) fail("rf_run returned " + std::to_string(status) + " for " + s.label);
}

void do_state(std::istringstream &in) {
  int64_t count = 0, n = 0;
  in >> count >> n;
  std::vector<rf_tensor> consts;
  for (int64_t i = 0; i < n; ++i) consts.push_back(read_tensor(in, false));
  std::vector<void *> made;
  int64_t bytes = 0;
  if (prepare_bytes != nullptr) {
    const int32_t status = prepare_bytes(consts.data(), static_cast<int32_t>(n), &bytes);
    if (status != RF_OK) fail("rf_prepare_bytes returned " + std::to_string(status));
  }
  const int64_t slot = (bytes + 4095) / 4096 * 4096;
  char *all = bytes > 0 ? static_cast<char *>(reserve(slot * count, huge)) : nullptr;
  for (int64_t i = 0; i < count; ++i) {
    void *state = all == nullptr ? nullptr : all + i * slot;
    if (state != nullptr && i > 0) {
      std::memcpy(state, all, bytes);  // states may be moved; packing once is much quicker
    } else if (prepare != nullptr) {
      const int32_t status = prepare(consts.data(), static_cast<int32_t>(n), state);
      if (status != RF_OK) fail("rf_prepare returned " + std::to_string(status));
    }
    made.push_back(state);
  }
  states.push_back(made);
}

void do_call(std::istringstream &in) {
  long batch = 0, state = 0, copy = 0, count = 0;
  Step s;
  in >> batch >> s.label >> state >> copy >> count;
  for (long i = 0; i < count; ++i) s.in.push_back(read_tensor(in, false));
  in >> count;
  for (long i = 0; i < count; ++i) s.out.push_back(read_tensor(in, true));
  s.state = state < 0 ? nullptr : states.at(state).at(copy);
  steps[batch].push_back(s);
}

void do_time(std::istringstream &in) {
  long batch = 0, reps = 0;
  double give_up = 0;
  in >> batch >> reps >> give_up;
  std::vector<Step> &calls = steps[batch];
  std::map<std::string, std::vector<double>> samples;
  std::vector<double> best(calls.size(), 1e30);
  bool gave_up = false;
  for (long rep = 0; rep < reps && !gave_up; ++rep) {
    double sum = 0;
    for (size_t i = 0; i < calls.size(); ++i) {
      const double start = now_us();
      call(calls[i]);
      const double took = now_us() - start;
      samples[calls[i].label].push_back(took);
      best[i] = std::min(best[i], took);
      sum += best[i];
    }
    // Minima of two repetitions: neither warming up nor a burst next door makes a kernel look slow.
    gave_up = give_up > 0 && rep >= 1 && sum > give_up;
  }
  std::ostringstream text;
  text << "{\"gave_up\": " << (gave_up ? "true" : "false") << ", \"us\": {";
  const char *comma = "";
  for (auto &item : samples) {
    text << comma << "\"" << item.first << "\": [";
    for (size_t i = 0; i < item.second.size(); ++i) text << (i ? ", " : "") << item.second[i];
    text << "]";
    comma = ", ";
  }
  std::cout << text.str() << "}}" << std::endl;
}

void do_output(std::istringstream &in) {
  long batch = 0;
  std::string label, path;
  in >> batch >> label >> path;
  for (Step &s : steps[batch]) {
    if (s.label != label) continue;
    for (rf_tensor &t : s.out) std::memset(t.data, 0xff, bytes_of(t));  // NaN in every float format
    call(s);
    std::ofstream file(path, std::ios::binary);
    for (rf_tensor &t : s.out) file.write(static_cast<const char *>(t.data), bytes_of(t));
    file.close();
    std::cout << "{\"written\": " << (file ? "true" : "false") << "}" << std::endl;
    return;
  }
  fail("no call " + label);
}

// Sums `bytes` from `p`, cut into Streams places that are read side by side.
template <int Streams>
uint64_t read_all(const char *p, int64_t bytes) {
  const int64_t seg = bytes / Streams / 64 * 64;
  uint64_t sum[8] = {};
  for (int64_t i = 0; i < seg; i += 64)
    for (int s = 0; s < Streams; ++s) {
      uint64_t line[8];
      __builtin_prefetch(p + s * seg + i + 2048, 0, 2);
      std::memcpy(line, p + s * seg + i, 64);
      for (int j = 0; j < 8; ++j) sum[j] ^= line[j];
    }
  uint64_t all = 0;
  for (uint64_t v : sum) all ^= v;
  return all;
}

template <int Streams>
double read_rate(const char *p, int64_t bytes, volatile uint64_t *sink) {
  double best = 0;
  for (int rep = 0; rep < 4; ++rep) {
    uint64_t sum = 0;
    const double start = now_us();
#pragma omp parallel for schedule(static, 1) num_threads(threads) reduction(^ : sum)
    for (int32_t t = 0; t < threads; ++t) sum ^= read_all<Streams>(p + bytes / threads * t, bytes / threads);
    const double rate = bytes / (now_us() - start) * 1e-3;
    *sink = sum;
    if (rate > best) best = rate;
  }
  return best;
}

void do_bandwidth(std::istringstream &in) {
  int64_t bytes = 0;
  in >> bytes;
  char *p = static_cast<char *>(reserve(bytes, true));
  std::memset(p, 1, bytes);
  volatile uint64_t sink = 0;
  double best = read_rate<1>(p, bytes, &sink);
  best = std::max(best, read_rate<4>(p, bytes, &sink));
  best = std::max(best, read_rate<8>(p, bytes, &sink));
  best = std::max(best, read_rate<16>(p, bytes, &sink));
  std::cout << "{\"gbytes_per_s\": " << best << "}" << std::endl;
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream in(line);
    std::string command, path;
    in >> command;
    if (command == "data") {
      in >> path;
      const int fd = open(path.c_str(), O_RDONLY);
      struct stat info;
      if (fd < 0 || fstat(fd, &info) != 0) fail("cannot read " + path);
      // Private and writable: operators that work in place may write to their inputs.
      data = static_cast<char *>(
          mmap(nullptr, info.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
      if (data == MAP_FAILED) fail("cannot map " + path);
    } else if (command == "load") {
      in >> path;
      void *object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (object == nullptr) fail("dlopen failed");
      auto abi = reinterpret_cast<decltype(&rf_abi)>(dlsym(object, "rf_abi"));
      run_kernel = reinterpret_cast<decltype(&rf_run)>(dlsym(object, "rf_run"));
      prepare = reinterpret_cast<decltype(&rf_prepare)>(dlsym(object, "rf_prepare"));
      prepare_bytes = reinterpret_cast<decltype(&rf_prepare_bytes)>(dlsym(object, "rf_prepare_bytes"));
      if (abi == nullptr || run_kernel == nullptr || abi() != RF_ABI_VERSION) fail("not a kernel object");
    } else if (command == "threads") {
      in >> threads;
    } else if (command == "huge") {
      in >> huge;
    } else if (command == "state") {
      do_state(in);
    } else if (command == "call") {
      do_call(in);
    } else if (command == "time") {
      do_time(in);
    } else if (command == "bandwidth") {
      do_bandwidth(in);
    } else if (command == "output") {
      do_output(in);
    } else if (command == "quit") {
      return 0;
    } else if (!command.empty()) {
      fail("unknown command " + command);
    }
  }
  return 0;
}
