// What every kernel that is compiled for the host includes of the standard library (ptx/host.cuh).
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
