// Activations of gated products, sixteen gates at a time: a call of expf for each takes longer than the product of a
// short row.
#pragma once
#include <math.h>

#include "abi.h"
#include "cpu_tiles.h"
#include "isa/exponential.h"

namespace blockscale::ISA_NAMESPACE {

ALWAYS_INLINE f32x16 sigmoid(const f32x16& x) { return splat(1.0f) / (exponential(x * -1.0f) + 1.0f); }

inline f32x16 activate(const Matmul& call, const f32x16& gate, const f32x16& up) {
  switch (call.activation) {
    case SILU:
      return gate * sigmoid(gate) * up;
    case GELU: {
      float gates[cpu_tiles::ROWS];
      store(gates, gate);
      for (float& each : gates) each = 0.5f * each * erfcf(each * -0.70710678118654752f);
      return load<f32x16>(gates) * up;
    }
    case GELU_TANH:
      return gate * sigmoid((gate + gate * gate * gate * 0.044715f) * 1.5957691216057308f) * up;
    default: {  // SWIGLU_OAI
      const f32x16 limit = splat(call.limit), least = splat(-call.limit);
      const f32x16 g = select(gate > call.limit, limit, gate);
      const f32x16 u = select(up < -call.limit, least, select(up > call.limit, limit, up));
      return g * sigmoid(g * call.alpha) * (u + 1.0f);
    }
  }
}

}  // namespace blockscale::ISA_NAMESPACE
