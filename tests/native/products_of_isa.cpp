// Products of every kind of format and several numbers of rows, by one instruction set of the library this is linked to.
//
//     products_of_isa [ISA]        its number in abi.h; the best of this CPU where none is given
//
// prints the number, and a line for each product: its name, a digest of the bits of the results, and the largest error
// relative to its bound, from a product in float64 of the same weights. Products by `bfmmla` must be those of
// bfmmla_definition.h, bit for bit.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "abi.h"
#include "bfmmla_definition.h"
#include "convert.h"
#include "cpu_tiles.h"
#if defined(__aarch64__)
#include "products/slice_table.h"
#endif

using namespace blockscale;

extern "C" int bs_best_isa();
extern "C" int64_t bs_stream(const Matmul* call);
extern "C" int64_t bs_gemm(const Matmul* call);
extern "C" int64_t bs_int8(const Matmul* call);
#if defined(__aarch64__)
extern "C" int64_t bs_bfmmla(const Matmul* call);
extern "C" int64_t bs_slices(const Matmul* call);
#endif

struct Kind {
  const char* name;
  int decoder, bits, block, scale_bytes;
  bool short_values;  // whose lower halves are zero
};

const Kind KINDS[] = {
    {"2 bits", TABLE, 2, 32, 1, false},         {"3 bits", TABLE, 3, 32, 1, false},
    {"4 bits", TABLE, 4, 32, 1, false},         {"4 bits, short values", TABLE, 4, 32, 1, true},
    {"5 bits", TABLE, 5, 32, 1, false},         {"6 bits", TABLE, 6, 32, 1, false},
    {"6 bits, short values", TABLE, 6, 32, 1, true}, {"e4m3", E4M3, 8, 32, 1, false},
    {"e5m2", E5M2, 8, 32, 1, false},            {"2 bits, blocks of 16", TABLE, 2, 16, 1, false},
    {"4 bits, blocks of 16", TABLE, 4, 16, 1, true}, {"e4m3, blocks of 16", E4M3, 8, 16, 1, false},
    {"4 bits, float32 scales of 64", TABLE, 4, 64, 4, false},
};

uint32_t state = 1;
uint32_t next() { return (state = state * 1664525u + 1013904223u) >> 8; }
float uniform() { return float(int(next() % 4097) - 2048) / 1024; }

// The value of an 8-bit float.
float small_float(int code, int exponent) {
  const int mantissa = 7 - exponent, bias = (1 << (exponent - 1)) - 1;
  const int e = (code & 127) >> mantissa, m = code & ((1 << mantissa) - 1);
  const double size = e ? std::ldexp(1 + std::ldexp(m, -mantissa), e - bias) : std::ldexp(m, 1 - bias - mantissa);
  return float(code & 128 ? -size : size);
}

bool special(const Kind& kind, int code) {
  return kind.decoder == E4M3 ? (code & 127) == 127 : kind.decoder == E5M2 && (code & 127) >= 124;
}

struct Operands {
  Kind kind;
  int64_t n, k, m;
  std::vector<float> table, scale_table, x;
  std::vector<uint8_t> codes, scales, values;  // values: codes [n][k]

  Operands(const Kind& kind, int64_t n, int64_t k, int64_t m)
      : kind(kind), n(n), k(k), m(m), table(256), scale_table(256), x(size_t(m * k)),
        codes(size_t(cpu_tiles::tiles(n) * cpu_tiles::tile_words(k, kind.bits) * 4)),
        scales(size_t(cpu_tiles::tiles(n) * cpu_tiles::tile_scales(k, kind.block) * kind.scale_bytes)),
        values(size_t(n * k)) {
    for (int i = 0; i < 256; ++i) {
      table[size_t(i)] = kind.decoder == E4M3 ? small_float(i, 4) : kind.decoder == E5M2 ? small_float(i, 5)
                         : kind.short_values  ? float(int(next() % 25) - 12) / 2
                                              : uniform() / 3;
      scale_table[size_t(i)] = float(std::ldexp(1.0, i - 127));
    }
    for (float& each : x) each = uniform();
    for (int64_t row = 0; row < n; ++row)
      for (int64_t column = 0; column < k; ++column) put_code(row, column);
    for (size_t i = 0; i < scales.size() / size_t(kind.scale_bytes); ++i) {
      const float value = uniform() + 3;
      if (kind.scale_bytes == 4) std::memcpy(&scales[4 * i], &value, 4);
      else scales[i] = uint8_t(next() % 8 ? 120 + next() % 10 : 0);  // 0 is looked up
    }
  }

  // As cpu_tiles.h places it.
  void put_code(int64_t row, int64_t column) {
    int code;
    do code = int(next() % (1u << kind.bits));
    while (special(kind, code));
    values[size_t(row * k + column)] = uint8_t(code);
    const int64_t tile = row / cpu_tiles::ROWS, chunk = column / cpu_tiles::CHUNK;
    const int pair = int(column % cpu_tiles::CHUNK / 2), half = int(column % 2);
    for (int i = 0; i < cpu_tiles::piece_count(kind.bits, pair); ++i) {
      const cpu_tiles::Piece p = cpu_tiles::piece(kind.bits, pair, i);
      const int64_t word = (tile * cpu_tiles::chunks(k) + chunk) * kind.bits + p.word;
      uint32_t bits;
      uint8_t* at = &codes[size_t((word * cpu_tiles::ROWS + row % cpu_tiles::ROWS) * 4)];
      std::memcpy(&bits, at, 4);
      bits |= (uint32_t(code) >> p.to & ((1u << p.width) - 1)) << (p.shift + 16 * half);
      std::memcpy(at, &bits, 4);
    }
  }

  float scale(int64_t row, int64_t column) const {
    const int64_t tile = row / cpu_tiles::ROWS, blocks = k / kind.block;
    const int64_t at = (tile * blocks + column / kind.block) * cpu_tiles::ROWS + row % cpu_tiles::ROWS;
    float scale = kind.scale_bytes == 1 ? scale_table[scales[size_t(at)]] : 0;
    if (kind.scale_bytes == 4) std::memcpy(&scale, &scales[size_t(4 * at)], 4);
    return scale;
  }

  float element(int64_t row, int64_t column) const { return table[values[size_t(row * k + column)]]; }

  // x and the table to bfloat16 numbers.
  void shorten() {
    for (auto* numbers : {&table, &x})
      for (float& each : *numbers) each = from_bfloat16(to_bfloat16(each));
  }
};

uint64_t digest(const std::vector<float>& numbers) {
  uint64_t hash = 14695981039346656037u;
  for (float each : numbers) {
    uint32_t bits;
    std::memcpy(&bits, &each, 4);
    hash = (hash ^ bits) * 1099511628211u;
  }
  return hash;
}

// roundings: how often a product is rounded on its way into the result, by 2^-24 each.
// lost: what a result may be off by besides.
double largest_error(const Operands& of, const std::vector<float>& out, int64_t roundings, double lost = 0) {
  double worst = 0;
  for (int64_t row = 0; row < of.m; ++row)
    for (int64_t column = 0; column < of.n; ++column) {
      double sum = 0, size = 0;
      for (int64_t i = 0; i < of.k; ++i) {
        const double weight = double(of.element(column, i)) * of.scale(column, i);
        const double product = weight * of.x[size_t(row * of.k + i)];
        sum += product;
        size += std::fabs(product);
      }
      const double bound = double(roundings) * std::ldexp(1.0, -24) * size + lost;
      const double error = std::fabs(out[size_t(row * of.n + column)] - sum);
      worst = std::fmax(worst, std::isfinite(error) && size > 0 ? error / bound : error);
    }
  return worst;
}

// ends: of the rows of each group, which has as many whole tiles of the weight as the others.
std::vector<float> multiply(const Operands& of, int isa, decltype(&bs_stream) product, const void* x, int x_dtype,
                            std::vector<int64_t> ends = {}) {
  if (ends.empty()) ends = {of.m};
  const int64_t groups = int64_t(ends.size()), n = of.n / groups;
  std::vector<float> out(size_t(of.m * n), NAN);
  std::vector<int64_t> row_begin{0};
  row_begin.insert(row_begin.end(), ends.begin(), ends.end());
  Matmul call{};
  call.format = {of.kind.decoder, of.kind.bits, of.kind.block, of.kind.scale_bytes, of.table.data(),
                 of.scale_table.data(), 1, 254, 23, 0};
  call.up_table = of.table.data();
  call.gate = {of.codes.data(), of.scales.data(), nullptr, nullptr, FLOAT32};
  call.up = call.gate;
  call.groups = groups;
  call.n = n;
  call.k = of.k;
  call.row_begin = row_begin.data();
  call.x = x;
  call.x_stride = of.k;
  call.x_dtype = x_dtype;
  call.out = out.data();
  call.out_stride = n;
  call.out_dtype = FLOAT32;
  call.activation = NONE;
  call.isa = isa;
  call.threads = 1;
  if (product(&call)) std::exit(1);
  return out;
}

void tell(const Operands& of, const char* algorithm, const std::vector<float>& out, double error) {
  std::printf("%s, %d rows, %s: %016llx %.3f\n", of.kind.name, int(of.m), algorithm,
              static_cast<unsigned long long>(digest(out)), error);
}

void try_product(const Operands& of, int isa, decltype(&bs_stream) product, const char* algorithm) {
  const std::vector<float> out = multiply(of, isa, product, of.x.data(), FLOAT32);
  const bool rounds_x = product == bs_int8;
  tell(of, algorithm, out, rounds_x ? 0.0 : largest_error(of, out, of.k + 4));
}

#if defined(__aarch64__)
int run_of(const Operands& of) { return of.kind.block == 16 ? 16 : 32; }  // that meets a scale at once

std::vector<float> defined_by_bfmmla(const Operands& of) {
  std::vector<float> out(size_t(of.m * of.n));
  for (int64_t row = 0; row < of.m; ++row)
    for (int64_t column = 0; column < of.n; ++column) {
      float total = 0;
      for (int64_t run = 0; run < of.k; run += run_of(of)) {
        float sum = 0;
        for (int i = 0; i < run_of(of); i += 2) {
          float w[2], x[2];
          for (int j = 0; j < 2; ++j) {
            const int64_t at = run + cpu_tiles::column_of(of.kind.bits, (i + j) / 4, (i + j) % 4);
            w[j] = of.element(column, at);
            x[j] = of.x[size_t(row * of.k + at)];
          }
          sum = definition::add_pair(sum, w, x);
        }
        total = std::fmaf(sum, of.scale(column, run), total);
      }
      out[size_t(row * of.n + column)] = total;
    }
  return out;
}

std::vector<float> multiply_by_bfmmla(const Operands& of, int isa, const std::vector<int64_t>& ends = {}) {
  std::vector<uint16_t> x(of.x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = to_bfloat16(of.x[i]);
  return multiply(of, isa, bs_bfmmla, x.data(), BFLOAT16, ends);
}

// Rounding to odd loses up to 2^-23 of a sum: once where a pair of products is added, and once for each pair of a run.
// Then there is a float32 rounding for each run.
void try_bfmmla(Operands of, int isa) {
  const std::vector<float> out = multiply_by_bfmmla(of, isa);
  of.shorten();
  const int64_t roundings = 2 * (1 + run_of(of) / 2) + of.k / run_of(of);
  const bool same = digest(out) == digest(defined_by_bfmmla(of));
  tell(of, "bfmmla", out, same ? largest_error(of, out, roundings) : INFINITY);
}

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "by bfmmla, %s\n", what);
  std::exit(3);
}

// A row of x has the same bits in a group of any size, beside groups of any size.
void check_groups(int isa) {
  const Operands of(KINDS[0], 64, 192, 14);
  const std::vector<float> whole = multiply_by_bfmmla(of, isa);
  const std::vector<int64_t> ends{1, 4, 4, 14};
  const std::vector<float> grouped = multiply_by_bfmmla(of, isa, ends);
  for (int64_t row = 0, group = 0; row < of.m; ++row) {
    while (row >= ends[size_t(group)]) ++group;
    require(!std::memcmp(&grouped[size_t(row * 16)], &whole[size_t(row * of.n + group * 16)], 16 * sizeof(float)),
            "a row depends on others");
  }
}

void check_tiny_numbers(int isa) {
  Operands of(KINDS[3], 37, 192, 3);  // of values above one, too
  for (float& each : of.x) each *= 0x1p-125f;
  const std::vector<float> out = multiply_by_bfmmla(of, isa);
  of.shorten();
  require(digest(out) == digest(defined_by_bfmmla(of)), "subnormal numbers are not those of its definition");
}

// A NaN of E4M3 reaches its row of the weight and no other, and an infinity of x its own row.
void check_specials(int isa) {
  const Kind& e4m3 = KINDS[7];
  Operands of(e4m3, 37, 192, 3);
  const std::vector<float> before = multiply_by_bfmmla(of, isa);
  const int64_t spoilt = 21, infinite = 1;
  const int64_t word = (spoilt / 16 * cpu_tiles::chunks(of.k) + 2) * e4m3.bits;  // of the third chunk
  of.codes[size_t((word * cpu_tiles::ROWS + spoilt % 16) * 4)] = 0x7f;
  of.x[size_t(infinite * of.k + 100)] = INFINITY;
  const std::vector<float> after = multiply_by_bfmmla(of, isa);
  for (int64_t row = 0; row < of.m; ++row)
    for (int64_t column = 0; column < of.n; ++column) {
      const size_t at = size_t(row * of.n + column);
      if (column == spoilt) require(std::isnan(after[at]), "a NaN is lost");
      else if (row == infinite) require(!std::isfinite(after[at]), "an infinity is lost");
      else require(!std::memcmp(&after[at], &before[at], sizeof(float)), "a NaN or an infinity spreads");
    }
}

// How many slices the weight is multiplied in; 0 where it is not.
int slices_of(const Operands& of, int isa) {
  if (isa < DOTPROD || of.kind.decoder != TABLE) return 0;
  const int slices = sliced_table(of.table.data(), of.kind.bits, of.k).slices;
  return of.kind.block >= 32 || (of.kind.bits == 4 && slices == 1) ? slices : 0;
}

// E3M2, whose integers have nine bits.
float e3m2(int code) { return small_float((code & 32) << 2 | (code & 31) << 2, 3); }

// A codebook that ascends about evenly, as those for normal numbers do: its smallest values are not very small.
float level(int code, int bits) {
  const float half = float(1 << (bits - 1));
  return (float(code) - half + 0.5f + uniform() / 16) / half;
}

Operands with_slices(const Kind& kind, int isa, int64_t k, bool of_e3m2) {
  Operands of(kind, 37, k, 5);
  for (int i = 0; i < 1 << kind.bits; ++i)
    if (of_e3m2) of.table[size_t(i)] = e3m2(i);
    else if (!kind.short_values) of.table[size_t(i)] = level(i, kind.bits);
  of.table[0] = 0;
  if (slices_of(of, isa)) return of;
  std::fprintf(stderr, "%s cannot be sliced\n", kind.name);
  std::exit(3);
}

void check_slices(const Operands& of, int isa, int64_t roundings, double lost, const char* x) {
  const std::vector<float> out = multiply(of, isa, bs_slices, of.x.data(), FLOAT32);
  const double error = largest_error(of, out, roundings, lost);
  if (error <= 1) return;
  std::fprintf(stderr, "by %d slices, %s, %s: %g of the bound\n", slices_of(of, isa), of.kind.name, x, error);
  std::exit(3);
}

// Numbers of x that three slices do not hold: far apart in size, larger where the weight is zero, subnormal.
void check_hard_rows(Operands of, int isa) {
  const std::vector<float> x = of.x;
  for (const int spread : {8, 24, 60, 200}) {
    for (size_t i = 0; i < of.x.size(); ++i) {
      of.x[i] = std::ldexp(x[i], -int(next() % unsigned(spread)));
      if (spread == 200) of.x[i] *= 0x1p-20f;
    }
    for (int64_t column = 0; column < of.k; column += 7)  // nobody's products: their weights are zero in row 0
      if (of.values[size_t(column)] == 0) of.x[size_t(column)] = 0x1p20f;
    const double lost = spread == 200 ? 0x1p-140 : 0;  // of results below the normal numbers
    check_slices(of, isa, of.k + 4, lost, "numbers far apart");
  }
}

// One number to a row: a result is a product, whose error no other hides. It is that of the table and of the sums of
// slices (slice_table.h).
void check_single_numbers(Operands of, int isa) {
  std::fill(of.x.begin(), of.x.end(), 0.0f);
  for (int64_t row = 0; row < of.m; ++row) of.x[size_t(row * of.k + 37 * row + 3)] = 1 + float(next()) * 0x1p-24f;
  const double lost = 0x1p-149;  // where a scale is no normal number, nor is the result
  check_slices(of, isa, of.kind.short_values ? 22 : of.k * 3 / 8 + 4, lost, "single numbers");
}

void check_slices_of_hard_rows(const Kind& kind, int isa) {
  const bool floats_of_six = kind.bits == 6 && kind.short_values;
  const Operands few = with_slices(kind, isa, kind.block == 16 ? 208 : 192, false);
  const Operands many = with_slices(kind, isa, 4096, floats_of_six);
  for (const Operands& of : {few, many}) check_hard_rows(of, isa), check_single_numbers(of, isa);
  const int at_first = slices_of(few, isa), at_last = slices_of(many, isa);
  // The bound of many columns leaves room for fewer slices of a codebook.
  const bool expected = kind.short_values ? at_first == 1 && at_last == 1 + floats_of_six
                                          : at_first >= at_last && (at_last == 2 || kind.bits > 4);
  if (expected) return;
  std::fprintf(stderr, "%s: %d slices of few columns, %d of many\n", kind.name, at_first, at_last);
  std::exit(3);
}

// Numbers that are so far apart that no slices hold both: floats do.
void check_codebook_that_no_slices_hold(int isa) {
  Operands of(KINDS[2], 37, 192, 3);
  for (size_t i = 0; i < 16; ++i) of.table[i] = std::ldexp(1.0f + 0.1f * float(i), -4 * int(i));
  const std::vector<float> out = multiply(of, isa, bs_slices, of.x.data(), FLOAT32);
  if (!slices_of(of, isa) && largest_error(of, out, of.k + 4) <= 1) return;
  std::fprintf(stderr, "by slices, a codebook of numbers far apart\n");
  std::exit(3);
}

// An infinity or NaN of x reaches its own row and no other, with the sign of the weight.
void check_slices_of_specials(const Kind& kind, int isa) {
  Operands of(kind, 37, 192, 5);
  if (!kind.short_values)
    for (int i = 0; i < 1 << kind.bits; ++i) of.table[size_t(i)] = level(i, kind.bits);
  const std::vector<float> before = multiply(of, isa, bs_slices, of.x.data(), FLOAT32);
  of.x[size_t(1 * of.k + 100)] = INFINITY;
  of.x[size_t(3 * of.k + 7)] = NAN;
  const std::vector<float> after = multiply(of, isa, bs_slices, of.x.data(), FLOAT32);
  const std::vector<float> floats = multiply(of, isa, bs_stream, of.x.data(), FLOAT32);
  for (size_t at = 0; at < after.size(); ++at) {
    const int64_t row = int64_t(at) / of.n;
    const bool kept = row == 1   ? after[at] == floats[at] || (std::isnan(after[at]) && std::isnan(floats[at]))
                      : row == 3 ? std::isnan(after[at])
                                 : !std::memcmp(&after[at], &before[at], sizeof(float));
    if (!kept) std::fprintf(stderr, "by slices, a NaN or an infinity is lost or spreads\n"), std::exit(3);
  }
}
#endif

int main(int count, char** arguments) {
  const int isa = count > 1 ? std::atoi(arguments[1]) : bs_best_isa();
  std::printf("%d\n", isa);
#if defined(__aarch64__)
  if (isa >= BF16) check_groups(isa), check_tiny_numbers(isa), check_specials(isa);
  if (isa >= DOTPROD) check_codebook_that_no_slices_hold(isa);
  for (const Kind& kind : KINDS)  // codebooks have five bits at most, and blocks of 16 one slice
    if (isa >= DOTPROD && kind.decoder == TABLE && (kind.block >= 32 ? kind.bits < 6 || kind.short_values : kind.bits == 4))
      check_slices_of_hard_rows(kind, isa), check_slices_of_specials(kind, isa);
#endif
  state = 1;  // the same numbers on every CPU
  for (const Kind& kind : KINDS)
    for (const int m : {1, 2, 3, 4, 5, 8, 13}) {
      const Operands of(kind, 37, kind.block == 16 ? 80 : 192, m);
      try_product(of, isa, bs_stream, "stream");
      try_product(of, isa, bs_gemm, "gemm");
#if defined(__aarch64__)
      if (isa >= BF16) try_bfmmla(of, isa);
      if (slices_of(of, isa)) try_product(of, isa, bs_slices, "slices");
#endif
      if (kind.bits == 2 || kind.bits == 4) try_product(Operands(kind, 37, 192, m), isa, bs_int8, "int8");
    }
}
