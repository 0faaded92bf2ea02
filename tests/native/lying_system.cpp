// A system that claims every instruction of ARM CPUs.
extern "C" unsigned long getauxval(unsigned long) { return ~0ul; }
