// Prints the number of the instruction set that is chosen on a system that claims every instruction of ARM CPUs.
#include <cstdio>

extern "C" unsigned long getauxval(unsigned long) { return ~0ul; }
extern "C" int bs_best_isa();

int main() { std::printf("%d\n", bs_best_isa()); }
