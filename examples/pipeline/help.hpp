// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pipeline {

/// What `--help` ends with.
inline constexpr const char* help_footer =
    "Methods: METHOD[:FORWARD[/BACKWARD]], bits of an element; those not given are --forward-bits, "
    "--backward-bits\n"
    "  exact         fp32 both ways\n"
    "  changes:B/b   AC-SGD: changes of activations against copies of them, 2, 3, 4 or 8 bits; the first "
    "visit whole\n"
    "  direct:B/b    activations as they are, 2, 3, 4, 8 or 16 (fp16) bits\n"
    "  rotated:B/b   the same in Hadamard's basis, 4/8, 3/6 or 2/4 bits with --granularity 128\n"
    "  Gradients: 32, or unbiased 8 or 4 bits, or 16 with direct:16.\n\n"
    "Tasks:\n"
    "  pictures      784-256-128-128-10 on 10,000 pictures of Fashion-MNIST; before, 3 epochs on 20,000 of 5 "
    "classes\n"
    "  text          4 transformer blocks of width 64 on 1,000 x 64 characters of songs and poems; before, "
    "an epoch on\n"
    "                5,000 of other fortunes\n"
    "  glosses       a pretrained BERT of 6 layers on 2,000 definitions of WordNet and their 45 classes, "
    "tested "
    "with others;\n"
    "                between epochs with 1,000 of them; its padding doesn't travel\n"
    "  Stages of all: 4, 2 or 1, which share the layers evenly; of the BERT 1, 2, 2 and 1. The optimizer is "
    "Adam, each stage's own.\n\n"
    "Columns:\n"
    "  change, error   ||a - m|| / ||a|| before and after a message, in the last epoch, mean over the "
    "boundaries:\n"
    "                  the size of the message, and of its error\n"
    "  bubble          share of its steps that a stage waits for others and for messages\n"
    "  step            a step after the first epoch, measured and predicted from the passes' times and bytes "
    "/ bandwidth,\n"
    "                  had every stage a core of its own\n\n"
    "Examples:\n"
    "  pipeline                                               fine-tuning on pictures, five methods\n"
    "  pipeline --task text --plot text.svg                   the same of a transformer\n"
    "  pipeline --method exact,changes:2/4 --seeds 1,2,3      mean and deviation\n"
    "  pipeline --task text --batch 64 --micro-batch 8 --epochs 2 --bandwidth auto:10 "
    "--method exact,direct:16/16,changes:4/8\n"
    "                                                         where fp32 messages take 10 forward passes\n"
    "  mpirun -n 4 pipeline --transport mpi                   stages that are processes\n"
    "  pipeline --replicas 2 --averaging 1-bit                eight ranks: two pipelines, and 1-bit Adam "
    "between "
    "them\n\n"
    "Exit codes: 0 done, 1 training failed, 2 an option or a file can't be used.";

}  // namespace pipeline
