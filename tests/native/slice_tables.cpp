// Reads lines of "BITS K VALUE ...", 2^BITS values, and prints how many slices such a weight is cut into.
#include <cstdio>

#include "products/slice_table.h"

int main() {
  int bits;
  long long k;
  float values[64];
  while (std::scanf("%d %lld", &bits, &k) == 2) {
    for (int i = 0; i < 1 << bits; ++i)
      if (std::scanf("%f", values + i) != 1) return 1;
    std::printf("%d\n", blockscale::sliced_table(values, bits, k).slices);
  }
}
