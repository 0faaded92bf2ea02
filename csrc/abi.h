// The C interface of the native CPU kernels: plain structs of pointers and sizes, called through
// ctypes. Nothing here depends on Python's or torch's ABI.
//
// Every struct is mirrored field by field in blockscale/runtime/native.py; raise ABI_VERSION with
// any change.
#pragma once
#include <cstdint>

namespace blockscale {

constexpr int ABI_VERSION = 12;

// Instruction sets, each including the ones before it of its line: AVX2 to AMX on x86, NEON to BF16 on ARM. SCALAR is
// portable code, for x86 without AVX2 and for all other machines.
enum Isa : int32_t { SCALAR = 0, AVX2 = 1, AVX512 = 2, AMX = 3, NEON = 4, DOTPROD = 5, I8MM = 6, BF16 = 7 };

enum Dtype : int32_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, INT8 = 3 };

constexpr int INT8_BLOCK = 32;  // elements of int8 x that share a scale

// How a code becomes a number: by table, or by arithmetic where a table would be slow.
enum Decoder : int32_t { TABLE = 0, E4M3 = 1, E5M2 = 2 };

enum Activation : int32_t { NONE = 0, SILU = 1, GELU = 2, GELU_TANH = 3, SWIGLU_OAI = 4 };

// What the codes of a weight mean. Tables are read, never written.
struct Format {
  int32_t decoder;           // Decoder
  int32_t bits;              // 2 to 8
  int32_t block;             // elements that share a scale
  int32_t scale_bytes;       // 1: a code into scale_table; 4: a float32
  const float* table;        // [2^bits]
  const float* scale_table;  // [256], where scale_bytes is 1
  // A scale's code from scale_low on, scale_plain of them, is (code << scale_shift) + scale_add as a
  // float32; the others need the table.
  uint32_t scale_low, scale_plain, scale_shift, scale_add;
};

// A batch of weights [groups, n, k] in the cpu_tiles layout (cpu_tiles.h).
struct Weight {
  const uint8_t* codes;
  const uint8_t* scales;
  const float* tensor_scale;  // [groups], or null
  const void* bias;           // [groups, n] in bias_dtype, or null
  int32_t bias_dtype;         // Dtype
};

// y = act(x @ gate.T + bias) * (x @ up.T + bias), or just x @ w.T + bias.
struct Matmul {
  Format format;             // of both; up has a table of its own
  const float* up_table;
  Weight gate;               // the only weight where activation is NONE
  Weight up;
  int64_t groups, n, k;
  const int64_t* row_begin;  // [groups + 1]: rows of x that belong to each group
  const void* x;             // [rows, k] in x_dtype, row-major with stride x_stride; bs_int8 rounds
                             // numbers to int8 in blocks of INT8_BLOCK itself
  int64_t x_stride;
  int32_t x_dtype;
  const float* x_scale;      // [rows]: tensor scales of x, or null
  const float* x_block_scale;  // [rows, k / INT8_BLOCK] where x_dtype is INT8: x holds its codes
  void* out;                 // [rows, n] in out_dtype, row-major with stride out_stride
  int64_t out_stride;
  int32_t out_dtype;
  int32_t activation;
  float alpha, limit;        // of SWIGLU_OAI
  int32_t isa;
  int32_t threads;
};

// Of products; every machine has the first three.
enum Algorithm : int32_t { BY_STREAM = 0, BY_GEMM = 1, BY_INT8 = 2, BY_AMX = 3, BY_SLICES = 4, BY_BFMMLA = 5 };

// x / sqrt(mean(x^2) + epsilon) * weight.
struct RmsNorm {
  const void* weight;  // [hidden], unless said otherwise
  int32_t dtype;
  float epsilon;
};

// What it reads and writes is set by bs_decode.
struct DecoderProduct {
  Matmul call;
  int32_t algorithm;  // of more than one token: Algorithm
};

// One layer of a decoder: attention with rotary positions and grouped key heads, then a gated product.
struct DecoderLayer {
  RmsNorm attention_norm, mlp_norm;
  RmsNorm q_norm, k_norm;  // [head_dim], of every head before it is turned; weight is null where there is none
  DecoderProduct q, k, v, o, gate_up, down;
  void* keys;            // [kv_heads][head_stride] in cache_dtype; those of the tokens are written to them
  void* values;
  int64_t head_stride;   // numbers from one key head to the next
};

// All layers of a decoder for some tokens of one sequence. Between layers x is float32; products of one token read it so,
// those of more tokens in x_dtype, unless they round it to int8.
struct Decode {
  DecoderLayer* layers;
  int64_t count;
  RmsNorm norm;               // after the last layer
  int64_t hidden, heads, kv_heads, head_dim, intermediate;
  int64_t position, tokens;   // tokens before these, and how many these are
  const float* rotation;      // [tokens][2][head_dim]: cosines, sines
  float attention_scale;
  int32_t int8;               // 1: products round x to int8 in blocks of INT8_BLOCK
  const void* x;              // [tokens][hidden] in x_dtype
  void* out;                  // [tokens][hidden] in x_dtype
  int32_t x_dtype, cache_dtype;
  int32_t isa;
  int32_t threads;
};

// A float of at most 16 bits, as far as rounding to it goes.
struct SmallFloat {
  int32_t mantissa;  // bits
  int32_t bias;
  float largest;     // what larger numbers become
  int32_t carries;   // 0: rounding stays inside a binade
};

// Where codes sit: row after row as a bit stream or as bit planes, or in tiles of rows (cpu_tiles.h).
enum CodeLayout : int32_t { BIT_STREAM = 0, BIT_PLANES = 1, CPU_TILES = 2 };

// Scales that are weighed by the squared error of their block.
enum Search : int32_t { NO_SEARCH = 0, NEIGHBOURS = 1, FOUR_OVER_SIX = 2 };

// How block scales follow from the amax of a block.
struct ScaleRule {
  int32_t search;        // Search
  int32_t power_of_two;  // 1: scales are powers of two, whose rule is `carry_from`
  double carry_from;     // fraction of amax in [1, 2) from which the next power of two is taken
  int32_t max_exponent;  // of the element
  int32_t nan_code;      // scale of a block with NaN or Inf; -1 where the scale has none
  float element_max;     // where amax is mapped to
  float least;           // scale of a block that is not all zeros, at least
  SmallFloat scale;      // of scales of one byte
  int32_t max_code;      // the largest code of a scale
};

// StridedBatch [groups, n, ...] whose columns are adjacent unless said otherwise; strides in elements.
struct StridedBatch {
  void* data;
  int64_t group_stride, row_stride;
};

// x -> codes and scales, bit for bit as blockscale/numerics/quantize.py defines them.
struct Quantize {
  Format format;
  ScaleRule rule;
  SmallFloat element;         // where is_float
  int32_t is_float;           // 0: the element is the codebook format.table
  int32_t code_layout;        // BIT_STREAM or BIT_PLANES
  int64_t groups, n, k;
  StridedBatch x;
  int64_t x_column_stride;
  int32_t x_dtype;
  const float* tensor_scale;  // [groups, n], or null
  const float* importance;    // [groups, k]: weights of squared errors; or null
  StridedBatch codes, scales;     // bytes
  int32_t isa;
  int32_t threads;
};

// Codes and scales -> out, bit for bit as blockscale/numerics/dequantize.py defines it.
struct Dequantize {
  Format format;
  int32_t code_layout;        // of codes; scales are in rows, or in tiles too for CPU_TILES
  int64_t groups, n, k;
  StridedBatch codes, scales;     // bytes; for CPU_TILES, a row is a tile
  const float* tensor_scale;  // [groups, n], or null
  StridedBatch out;
  int32_t out_dtype;
  int32_t isa;
  int32_t threads;
};

// Codes and scales in rows -> tiles of the cpu_tiles layout.
struct Repack {
  int32_t bits, block, scale_bytes;
  int32_t code_layout;     // of codes: BIT_STREAM or BIT_PLANES
  int64_t groups, n, k;
  StridedBatch codes, scales;  // bytes
  uint8_t* codes_out;
  uint8_t* scales_out;
  int32_t isa;
  int32_t threads;
};

// Bits of the largest finite magnitude of each row.
struct Amax {
  int64_t rows, k;
  const void* x;
  int64_t row_stride, column_stride;
  int32_t dtype;
  int32_t* out;  // [rows]
  int32_t isa;
  int32_t threads;
};

}  // namespace blockscale
