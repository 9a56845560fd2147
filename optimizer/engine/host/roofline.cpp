// Read bandwidth and multiply-add peak of a set of cores, one pinned thread on each.
//
// Usage: roofline bandwidth BYTES STREAMS SECONDS CPU...   |   roofline KIND SECONDS CPU...
// KIND: fp32, avx512_bf16, amx_bf16 or neon_bf16. Prints one number: GB/s (1e9) over all threads, or GFLOP/s
// with a multiply-add counted as two. Exit status 3: this build or this processor cannot do KIND.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;
volatile double sink;  // results end here, so that no loop can be left out

double since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

bool pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return sched_setaffinity(0, sizeof set, &set) == 0;
}

// All threads start together and each counts what it did until the time is up; the rates add up.
template <class Prepare>
double together(const std::vector<int>& cpus, double seconds, Prepare prepare) {
    std::atomic<int> ready{0};
    std::vector<double> rates(cpus.size());
    std::vector<std::thread> threads;
    for (size_t t = 0; t < cpus.size(); ++t) {
        threads.emplace_back([&, t] {
            if (!pin(cpus[t])) std::exit(4);
            std::function<double()> unit = prepare();  // amount of work one call does
            unit();
            ready.fetch_add(1);
            while (ready.load() < static_cast<int>(cpus.size())) {
            }
            double done = 0;
            const auto start = Clock::now();
            do {
                done += unit();
            } while (since(start) < seconds);
            rates[t] = done / since(start);
        });
    }
    for (auto& thread : threads) thread.join();
    double sum = 0;
    for (double rate : rates) sum += rate;
    return sum;
}

// A vector as wide as the registers this file is compiled for; on others the compiler splits it.
typedef uint64_t Wide __attribute__((vector_size(64)));
typedef float Floats __attribute__((vector_size(64)));

// Reads the buffer as `streams` runs side by side, 512 bytes of each in turn: how many a core needs to keep
// its memory busy differs from part to part.
double bandwidth(const std::vector<int>& cpus, size_t bytes, size_t streams, double seconds) {
    return together(cpus, seconds, [=]() -> std::function<double()> {
        void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) std::exit(5);
#ifdef MADV_HUGEPAGE
        madvise(memory, bytes, MADV_HUGEPAGE);
#endif
        std::memset(memory, 1, bytes);  // touched by the thread that reads it: on its own memory node
        constexpr size_t kBlock = 8;    // vectors, 512 bytes
        constexpr size_t kSlices = 16;  // one a call, so that the clock is asked often enough
        const auto* data = static_cast<const Wide*>(memory);
        const size_t run = bytes / sizeof(Wide) / streams;
        const size_t slice = run / kSlices / kBlock * kBlock;
        return [=, at = size_t{0}]() mutable {
            Wide sums[kBlock] = {};
            for (size_t i = 0; i < slice; i += kBlock) {
                for (size_t s = 0; s < streams; ++s) {
                    const Wide* p = data + s * run + at * slice + i;
                    for (size_t j = 0; j < kBlock; ++j) sums[j] += p[j];
                }
            }
            Wide sum = sums[0];
            for (size_t j = 1; j < kBlock; ++j) sum += sums[j];
            sink = static_cast<double>(sum[0]);
            at = (at + 1) % kSlices;
            return static_cast<double>(slice * streams * sizeof(Wide)) / 1e9;
        };
    });
}

constexpr int kRounds = 20000;

double fp32(const std::vector<int>& cpus, double seconds) {
    return together(cpus, seconds, []() -> std::function<double()> {
        return [] {
            Floats x = {}, y = {};
            x += 1.0000001f;
            y += 1e-9f;
            Floats acc[12] = {};
            for (int r = 0; r < kRounds; ++r)
                for (auto& a : acc) a = a * x + y;
            Floats sum = acc[0];
            for (int j = 1; j < 12; ++j) sum += acc[j];
            sink = sum[0];
            return 12.0 * 16 * 2 * kRounds / 1e9;
        };
    });
}

double avx512_bf16([[maybe_unused]] const std::vector<int>& cpus, [[maybe_unused]] double seconds) {
#ifdef __AVX512BF16__
    return together(cpus, seconds, []() -> std::function<double()> {
        return [] {
            const __m512bh x = (__m512bh)_mm512_set1_epi16(0x3f80);  // 1.0
            __m512 acc[12];
            for (auto& a : acc) a = _mm512_setzero_ps();
            // twelve chains: more than latency times throughput of any part we know
            for (int r = 0; r < kRounds; ++r) {
#pragma GCC unroll 12
                for (int j = 0; j < 12; ++j) acc[j] = _mm512_dpbf16_ps(acc[j], x, x);
            }
            __m512 sum = acc[0];
            for (int j = 1; j < 12; ++j) sum = _mm512_add_ps(sum, acc[j]);
            sink = _mm512_cvtss_f32(sum);
            return 12.0 * 16 * 4 * kRounds / 1e9;  // two multiply-adds a lane
        };
    });
#else
    std::exit(3);
#endif
}

#ifdef __AMX_BF16__
struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes_per_row[16] = {};
    uint8_t rows[16] = {};
};
#endif

double amx_bf16([[maybe_unused]] const std::vector<int>& cpus, [[maybe_unused]] double seconds) {
#ifdef __AMX_BF16__
    constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) std::exit(3);
    return together(cpus, seconds, []() -> std::function<double()> {
        return [] {
            TileConfig config;
            for (int i = 0; i < 8; ++i) config.bytes_per_row[i] = 64, config.rows[i] = 16;
            _tile_loadconfig(&config);
            alignas(64) static const uint8_t zeros[1024] = {};
            _tile_loadd(4, zeros, 64);
            _tile_loadd(5, zeros, 64);
            _tile_loadd(6, zeros, 64);
            _tile_loadd(7, zeros, 64);
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int r = 0; r < kRounds; ++r) {
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            alignas(64) float out[256];
            _tile_stored(0, out, 64);
            sink = out[0];
            _tile_release();
            return 4.0 * 16 * 16 * 32 * 2 * kRounds / 1e9;
        };
    });
#else
    std::exit(3);
#endif
}

double neon_bf16([[maybe_unused]] const std::vector<int>& cpus, [[maybe_unused]] double seconds) {
#if defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    return together(cpus, seconds, []() -> std::function<double()> {
        return [] {
            const bfloat16x8_t x = vreinterpretq_bf16_u16(vdupq_n_u16(0x3f80));
            float32x4_t acc[12];
            for (auto& a : acc) a = vdupq_n_f32(0);
            for (int r = 0; r < kRounds; ++r) {
#pragma GCC unroll 12
                for (int j = 0; j < 12; ++j) acc[j] = vbfmmlaq_f32(acc[j], x, x);
            }
            float32x4_t sum = acc[0];
            for (int j = 1; j < 12; ++j) sum = vaddq_f32(sum, acc[j]);
            sink = vaddvq_f32(sum);
            return 12.0 * 2 * 2 * 4 * 2 * kRounds / 1e9;  // 2x4 times 4x2
        };
    });
#else
    std::exit(3);
#endif
}

}  // namespace

int main(int argc, char** argv) {
    const std::string kind = argc > 1 ? argv[1] : "";
    const int first = kind == "bandwidth" ? 5 : 3;
    if (argc <= first) return 2;
    const double seconds = std::atof(argv[first - 1]);
    std::vector<int> cpus;
    for (int i = first; i < argc; ++i) cpus.push_back(std::atoi(argv[i]));
    double rate = 0;
    if (kind == "bandwidth")
        rate = bandwidth(cpus, std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10), seconds);
    else if (kind == "fp32") rate = fp32(cpus, seconds);
    else if (kind == "avx512_bf16") rate = avx512_bf16(cpus, seconds);
    else if (kind == "amx_bf16") rate = amx_bf16(cpus, seconds);
    else if (kind == "neon_bf16") rate = neon_bf16(cpus, seconds);
    else return 2;
    std::printf("%.6g\n", rate);
    return 0;
}
