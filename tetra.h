#pragma once
// All that a program which trains through the library needs.

#include "kernels/error.h"
#include "mesh/collectives.h"
#include "mesh/fabric.h"
#include "mesh/rendezvous.h"
#include "mesh/world.h"
#include "models/causal_lm.h"
#include "models/weights.h"
#include "parallel/data/gradients.h"
#include "parallel/optim/grad_norm.h"
#include "parallel/optim/optimizer.h"
#include "parallel/optim/schedule.h"
#include "train/config.h"
#include "train/run.h"
#include "train/trainer.h"
