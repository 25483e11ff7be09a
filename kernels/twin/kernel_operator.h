// Umbrella of the twin's vector side: the same include name as the toolkit's.
#pragma once

#include "twin/advanced.h"
#include "twin/copy.h"
#include "twin/fill.h"
#include "twin/reduce.h"
#include "twin/select.h"
#include "twin/system.h"
#include "twin/vector.h"
