#pragma once

#ifndef FACTOR
constexpr int FACTOR = 1;
#endif
