#include "launch/config_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "kernels/error.h"
#include "launch/config_fields.h"

namespace tetra {
namespace {

const std::string kBase = "model: {from: folder}\ndata: {text: a.txt}\n";

LoadedConfig load(const std::string& yaml, std::vector<std::string> sets = {}, Variables environment = {}) {
  return load_config_text(yaml, {"c.yaml", std::move(environment), std::move(sets)});
}

std::string error_of(const std::string& yaml, std::vector<std::string> sets = {}, Variables environment = {}) {
  try {
    load(yaml, std::move(sets), std::move(environment));
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// Values of all keys, for comparing configurations.
std::vector<std::string> values(const Config& config) {
  std::vector<std::string> all;
  for (const Field& field : config_fields()) {
    all.push_back(field.key + "=" + value_text(field, config));
  }
  return all;
}

struct Bad {
  std::string yaml;
  std::string message;  // its beginning
};

void expect_errors(const std::vector<Bad>& cases) {
  for (const auto& [yaml, message] : cases) {
    const std::string error = error_of(yaml);
    EXPECT_EQ(error.substr(0, message.size()), message) << "in:\n" << yaml;
  }
}

TEST(Reader, TheWholeLayoutOfTheDocumentation) {
  const Config config = load(R"(
seed: 18446744073709551615
model:
  config: {model_type: llama, hidden_size: 512}
data:
  text: [a.txt, "b*.txt"]
  tokenizer: byte
  seq_len: 128
train:
  steps: 1e3
  global_batch_size: 16
  micro_batch_size: 2
  precision: bf16
  optimizer: {type: sgd, lr: 3.0e-4, momentum: .9, nesterov: true, weight_decay: 0}
  scheduler: {type: cosine, warmup_steps: 10, min_lr: 3.0e-5}
  clip_grad_norm: null
  recompute: none
parallelism:
  {pp_size: 1, dp_replicate_size: 2, dp_shard_size: 3, cp_size: 4, sp_size: 5, tp_size: 6, ep_size: 7,
   sequence_parallel: true, zero_stage: 2, cp_comm_strategy: allgather, pipeline_schedule: 1f1b, virtual_stages: 2}
checkpoint: {dir: out/ckpt, every: 50, keep: 3, resume: auto}
log: {metrics: out/metrics.jsonl, every: 2}
export: out/model
device: cpu
)")
                            .config;
  EXPECT_EQ(config.seed, 18446744073709551615u);
  EXPECT_EQ(config.model.config_json, R"({"model_type":"llama","hidden_size":512})");
  EXPECT_EQ(config.data.text, (std::vector<std::string>{"a.txt", "b*.txt"}));
  EXPECT_EQ(config.data.seq_len, 128);
  EXPECT_EQ(config.train.steps, 1000);
  EXPECT_EQ(config.train.precision, "bf16");
  EXPECT_EQ(config.train.optimizer.lr, 3e-4);
  EXPECT_EQ(config.train.optimizer.momentum, 0.9);
  EXPECT_TRUE(config.train.optimizer.nesterov);
  EXPECT_EQ(config.train.scheduler.warmup_steps, 10);
  EXPECT_FALSE(config.train.clip_grad_norm.has_value());
  const Degrees& degrees = config.parallelism.degrees;
  EXPECT_EQ((std::vector<int64_t>{degrees.pp, degrees.dp_replicate, degrees.dp_shard, degrees.cp, degrees.sp,
                                  degrees.tp, degrees.ep}),
            (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_TRUE(config.parallelism.sequence_parallel);
  EXPECT_EQ(config.checkpoint.dir, "out/ckpt");
  EXPECT_EQ(config.log.every, 2);
  EXPECT_EQ(config.export_dir, "out/model");
}

TEST(Reader, DefaultsAreThoseOfTheStruct) {
  Config defaults;
  defaults.model.from = "folder";
  defaults.data.text = {"a.txt"};
  EXPECT_EQ(values(load(kBase).config), values(defaults));
}

TEST(Reader, NumbersAreOneWhereverTheyStand) {
  for (const std::string text : {"1e-4", "1E-4", ".0001", "0.0001"}) {
    EXPECT_EQ(load(kBase + "train: {optimizer: {lr: " + text + "}}").config.train.optimizer.lr, 1e-4) << text;
    EXPECT_EQ(load(kBase, {"train.optimizer.lr=" + text}).config.train.optimizer.lr, 1e-4) << text;
    EXPECT_EQ(load(kBase, {}, {{"TETRA__train__optimizer__lr", text}}).config.train.optimizer.lr, 1e-4) << text;
  }
  for (const std::string text : {"1e3", "1000", "1.0E3", "1000.0"}) {
    EXPECT_EQ(load(kBase, {"train.steps=" + text}).config.train.steps, 1000) << text;
  }
  const std::vector<std::string> refused = {"1.5",  "010",  "0x10", "1_0",  ".inf", "\"5\"",  "yes",
                                            "true", "null", "~",    "[5]",  "{}",   "-1",     "0",
                                            "5 5",  "'5'",  "abc",  "1e30", "&a 5", "!!int 5"};
  for (const std::string& text : refused) {
    EXPECT_EQ(error_of(kBase + "train: {steps: " + text + "}").rfind("c.yaml:3:16: ", 0), 0u)
        << error_of(kBase + "train: {steps: " + text + "}");
    EXPECT_EQ(error_of(kBase, {"train.steps=" + text}).rfind("--set train.steps=" + text + ": ", 0), 0u) << text;
    const std::string name = "TETRA__TRAIN__STEPS";
    EXPECT_EQ(error_of(kBase, {}, {{name, text}}).rfind(name + "=" + text + ": ", 0), 0u) << text;
  }
}

TEST(Reader, WrongTypesAndValuesHavePlaces) {
  expect_errors({
      {"train:\n  steps: abc", "c.yaml:2:10: train.steps must be an integer, not the text 'abc'"},
      {"train:\n  steps: 1.5", "c.yaml:2:10: train.steps must be an integer (at least 1), not 1.5"},
      {"train:\n  steps: \"5\"",
       "c.yaml:2:10: train.steps must be an integer, not the text '5'; write it without quotes"},
      {"train:\n  steps:", "c.yaml:2:3: train.steps must be an integer, not nothing; write a value or leave"},
      {"train:\n  steps: null", "c.yaml:2:10: train.steps must be an integer, not null"},
      {"train:\n  steps: 0", "c.yaml:2:10: train.steps is 0; it must be at least 1"},
      {"train:\n  steps: [1]", "c.yaml:2:10: train.steps must be an integer, not a list"},
      {"data: {seq_len: -4}", "c.yaml:1:17: data.seq_len is -4; it must be at least 1"},
      {"seed: -1", "c.yaml:1:7: seed must be an integer from 0 to 18446744073709551615, not -1"},
      {"seed: 18446744073709551616", "c.yaml:1:7: seed must be an integer from 0"},
      {"train: {optimizer: {lr: fast}}", "c.yaml:1:25: train.optimizer.lr must be a number, not the text 'fast'"},
      {"train: {optimizer: {lr: 1e999}}", "c.yaml:1:25: train.optimizer.lr is 1e999, which is beyond"},
      {"train: {optimizer: {lr: -1}}", "c.yaml:1:25: train.optimizer.lr is -1; it must be at least 0"},
      {"train: {optimizer: {lr: .nan}}", "c.yaml:1:25: .nan is not allowed: numbers must be finite"},
      {"train: {optimizer: {lr: 0x1}}", "c.yaml:1:25: 0x1: only decimal numbers"},
      {"train: {optimizer: {betas: [0.9]}}",
       "c.yaml:1:28: train.optimizer.betas must be a list of 2 numbers, not a list of 1"},
      {"train: {optimizer: {betas: 0.9}}", "c.yaml:1:28: train.optimizer.betas must be a list of 2 numbers, not 0.9"},
      {"train: {optimizer: {betas: [0.9, 1.0]}}",
       "c.yaml:1:34: train.optimizer.betas is 1.0; it must be at least 0, below 1"},
      {"train: {optimizer: {betas: [0.9, x]}}",
       "c.yaml:1:34: train.optimizer.betas must be a list of 2 numbers, not the text 'x'"},
      {"train: {optimizer: {nesterov: 1}}", "c.yaml:1:31: train.optimizer.nesterov must be true or false, not 1"},
      {"parallelism: {sequence_parallel: yes}",
       "c.yaml:1:34: yes is not a boolean here: booleans are only true or false"},
      {"parallelism: {sequence_parallel: \"true\"}",
       "c.yaml:1:34: parallelism.sequence_parallel must be true or false, not the text"},
      {"parallelism: {zero_stage: 4}", "c.yaml:1:27: parallelism.zero_stage is 4; it must be at least 0, at most 3"},
      {"parallelism: {tp_size: 0}", "c.yaml:1:24: parallelism.tp_size is 0; it must be at least 1"},
      {"parallelism: {timeout_seconds: 0}", "c.yaml:1:32: parallelism.timeout_seconds is 0; it must be above 0"},
      {"train: {clip_grad_norm: 0}", "c.yaml:1:25: train.clip_grad_norm is 0; it must be above 0"},
      {"train: {clip_grad_norm: }", "c.yaml:1:9: train.clip_grad_norm must be a number or null, not nothing"},
      {"train: {clip_grad_norm: ~}", "c.yaml:1:25: ~ is not used here: null is written null"},
      {"train: {precision: fp23}", "c.yaml:1:20: train.precision is 'fp23'; use fp64, fp32, bf16 or fp16"},
      {"train: {optimizer: {type: adam}}", "c.yaml:1:27: train.optimizer.type is 'adam'; use adamw, sgd or lion"},
      {"train: {scheduler: {type: step}}",
       "c.yaml:1:27: train.scheduler.type is 'step'; use constant, linear or cosine"},
      {"train: {recompute: all}", "c.yaml:1:20: train.recompute is 'all'; use none, selective or full"},
      {"parallelism: {cp_comm_strategy: x}",
       "c.yaml:1:33: parallelism.cp_comm_strategy is 'x'; use auto, ring, allgather or alltoall"},
      {"parallelism: {pipeline_schedule: 2f2b}",
       "c.yaml:1:34: parallelism.pipeline_schedule is '2f2b'; use gpipe, 1f1b"},
      {"parallelism: {backend: gloo}", "c.yaml:1:24: parallelism.backend is 'gloo'; use auto, local, mpi or nccl"},
      {"device: tpu", "c.yaml:1:9: device is 'tpu'; use auto, cpu or cuda"},
      {"data: {tokenizer: bpe}", "c.yaml:1:19: data.tokenizer is 'bpe'; use byte"},
      {"export: 5", "c.yaml:1:9: export must be text or null, not 5; write \"5\" if text is meant"},
      {"export: \"\"", "c.yaml:1:9: export is empty"},
      {"data: {text: []}", "c.yaml:1:14: data.text is an empty list"},
      {"data: {text: [a, 5]}", "c.yaml:1:18: data.text must be text or list or null, not 5"},
      {"train: 5", "c.yaml:1:8: train must be a map with keys of steps, global_batch_size,"},
      {"train:\nseed: 1", "c.yaml:1:1: train must be a map with keys of steps,"},
      {"model: {config: llama}", "c.yaml:1:17: model.config must be a map, as in a config.json, not the text 'llama'"},
      {"model: {config: {}}", "c.yaml:1:17: model.config is an empty map"},
      {"model: {config: {a: True}}", "c.yaml:1:21: True is not a boolean here"},
      {"model: {config: {a: 1e999}}", "c.yaml:1:21: model.config.a is 1e999, which is beyond"},
      {"model:\n  config:\n    a:\n    b: 1", "c.yaml:3:5: model.config.a has no value"},
  });
}

TEST(Reader, UnknownKeysNameTheNearest) {
  expect_errors({
      {"train:\n  steps: 5\n  stepz: 5", "c.yaml:3:3: train.stepz is not a key; did you mean train.steps?"},
      {"trian: {steps: 5}", "c.yaml:1:1: trian is not a key; did you mean train?"},
      {"tp_size: 2", "c.yaml:1:1: tp_size is not a key; did you mean parallelism.tp_size?"},
      {"train: {lr: 1}", "c.yaml:1:9: train.lr is not a key; did you mean train.optimizer.lr?"},
      {"parallelism: {tp_sizes: 2}",
       "c.yaml:1:15: parallelism.tp_sizes is not a key; did you mean parallelism.tp_size?"},
      {"Seed: 1", "c.yaml:1:1: Seed is not a key; did you mean seed?"},
      {"train: {qqqqqqqq: 1}", "c.yaml:1:9: train.qqqqqqqq is not a key; did you mean "},
      {"train.steps: 5", "c.yaml:1:1: train.steps: a key has no dots here; nest it: {train: {...}}"},
      {"seed: {a: 1}", "c.yaml:1:7: seed must be an integer, not a map"},
  });
  EXPECT_EQ(error_of(kBase, {"train.stepz=5"}),
            "--set train.stepz=5: train.stepz is not a key; did you mean train.steps?");
  EXPECT_EQ(error_of(kBase, {"train.steps.x=5"}).rfind("--set train.steps.x=5: train.steps.x is not a key", 0), 0u);
  EXPECT_EQ(error_of(kBase, {}, {{"TETRA__train__stepz", "5"}}),
            "TETRA__train__stepz=5: train.stepz is not a key; did you mean train.steps?");
  EXPECT_NE(error_of("train: {qqqqqqqq: 1}").find("train has steps, global_batch_size"), std::string::npos);
}

TEST(Reader, WhatYamlWouldLetPassIsRefused) {
  expect_errors({
      {"seed: 1\ntrain: {steps: 5}\nseed: 2", "c.yaml:3:1: the key seed is given twice; the first is on line 1"},
      {"train:\n  steps: 1\n  steps: 1", "c.yaml:3:3: the key steps is given twice; the first is on line 2"},
      {"seed: 1\n\"seed\": 1", "c.yaml:2:1: the key seed is given twice"},
      {"model: {config: {a: 1, a: 2}}", "c.yaml:1:24: the key a is given twice"},
      {"train:\n  <<: {steps: 1}", "c.yaml:2:3: merge keys (<<) are not allowed"},
      {"train: &t {steps: 1}", "c.yaml:1:8: anchors (&) are not allowed"},
      {"a: &t 1\nb: *t", "c.yaml:1:4: anchors (&) are not allowed"},
      {"export: *.txt", "c.yaml:1:9: not YAML: the referenced anchor is not defined (* has a meaning in YAML"},
      {"seed: !!int 5", "c.yaml:1:7: tags (!) are not allowed"},
      {"export: !x y", "c.yaml:1:9: tags (!) are not allowed"},
      {"export: ! y", "c.yaml:1:9: tags (!) are not allowed"},
      {"train: !m {steps: 1}", "c.yaml:1:8: tags (!) are not allowed"},
      {"seed: 1\n---\nseed: 2", "c.yaml:2:1: this starts a second document"},
      {"", "c.yaml: the file is empty"},
      {"# nothing\n", "c.yaml: the file is empty"},
      {"---\n", "c.yaml: the file is empty"},
      {"null", "c.yaml:1:1: the configuration must be a map with keys of seed, device, export, model,"},
      {"just text", "c.yaml:1:1: the configuration must be a map"},
      {"- seed: 1", "c.yaml:1:1: the configuration must be a map"},
      {"- 1\nseed: 1", "c.yaml:2:1: this starts a second document"},
      {"train:\n\tsteps: 1", "c.yaml:2:1: tab in the indentation"},
      {"train:\n  \tsteps: 1", "c.yaml:2:3: tab in the indentation"},
      {"# \xC3\xA9\nexport: \xFF", "c.yaml:2:9: byte 0xff is not UTF-8"},
      {"export: \xC3", "c.yaml:1:9: byte 0xc3 is not UTF-8"},
      {"export: \xED\xA0\x80", "c.yaml:1:9: byte 0xed is not UTF-8"},
      {std::string("seed: 1\0", 8), "c.yaml:1:8: control character 0x00"},
      {"export: \"x", "c.yaml:1:11: not YAML: illegal EOF in scalar"},
      {"export: \"x\nseed: 1\n", "c.yaml:1:9: the quote \" that opens here is not closed"},
      {"export: 'it''s\n", "c.yaml:1:9: the quote ' that opens here is not closed"},
      {"train: {steps: 1\nseed: 2", "c.yaml:2:5: not YAML: end of map flow not found"},
      {"data: {text: [a, b}", "c.yaml:1:19: not YAML: "},
      {"seed: 1\n  x: 2", "c.yaml:2:4: not YAML: "},
      {"[a, b]: 1", "c.yaml:1:1: a key must be text, not a list"},
      {"{a: 1}: 1", "c.yaml:1:1: a key must be text, not a map"},
      {": 1", "c.yaml:1:1: a key must be text, not nothing"},
      {"seed: 1\n}", "c.yaml:2:1: not YAML: "},
      {"export: \"\xC3\xA9\" # \xC3\xA9\n\xC3\xA9t: 1", "c.yaml:2:1: \xC3\xA9t is not a key"},
      {"model: {config: {\"\xC3\xA9\": 1, x: 010}}", "c.yaml:1:29: 010 has a leading zero"},
      {"seed: 010", "c.yaml:1:7: 010 has a leading zero"},
      {"\xEF\xBB\xBFseed: x", "c.yaml:1:7: seed must be an integer"},
      {"train: {steps: 1}\r\nseed: x\r\n", "c.yaml:2:7: seed must be an integer"},
  });
}

TEST(Reader, EmptyValueBeforeAKeyNamedLikeNullIsNotNull) {
  expect_errors({{"model:\n  config:\n    a:\n    nullx: 1", "c.yaml:3:5: model.config.a has no value"},
                 {"train:\n  clip_grad_norm:\nnull: 1", "c.yaml:3:1: a key must be text"}});
}

TEST(Reader, ModelAndDataAreChosenOnce) {
  expect_errors({
      {"data: {text: a}", "c.yaml: model.from or model.config must be given"},
      {"model: {from: a, config: {b: 1}}\ndata: {text: a}",
       "c.yaml:1:15: model.from and model.config (c.yaml:1:26) are both given; give one"},
      {"model: {from: a}", "c.yaml: data.text or data.tokens must be given"},
      {"model: {from: a}\ndata: {text: a, tokens: b}",
       "c.yaml:2:14: data.text and data.tokens (c.yaml:2:25) are both given"},
      {"model: {from: a}\ndata: {text: a, labels: b}", "c.yaml:2:25: data.labels stands beside data.tokens"},
      {"model: {from: a}\ndata: {text: a, mask: b}", "c.yaml:2:23: data.mask stands beside data.tokens"},
  });
  const Config config = load("model: {config: {b: 1}}\ndata: {text: a}", {"model.config=null", "model.from=x"}).config;
  EXPECT_EQ(config.model.from, "x");
  EXPECT_EQ(config.model.config_json, "");
}

TEST(Reader, SettingsThatContradictEachOther) {
  expect_errors({
      {kBase + "train: {optimizer: {momentum: 0.9}}",
       "c.yaml:3:31: train.optimizer.momentum 0.9 has no meaning for adamw; it belongs to sgd"},
      {kBase + "train: {optimizer: {type: sgd, nesterov: true}}",
       "c.yaml:3:42: train.optimizer.nesterov needs sgd with train.optimizer.momentum above 0"},
      {kBase + "train: {optimizer: {lr: 1e-3}, scheduler: {type: cosine, min_lr: 1e-2}}",
       "c.yaml:3:66: train.scheduler.min_lr 0.01 is above train.optimizer.lr 0.001"},
  });
}

TEST(Reader, LaterSourcesWin) {
  const std::string file = kBase + "seed: 1\ntrain: {steps: 1, global_batch_size: 1, micro_batch_size: 1}\n";
  const Variables environment = {{"TETRA__SEED", "2"},
                                 {"TETRA__train__steps", "2"},
                                 {"TETRA__train__global_batch_size", "2"},
                                 {"TETRA_OTHER", "x"},
                                 {"PATH", "x"}};
  const LoadedConfig loaded = load(file, {"seed=3", "train.steps=3", "seed=4"}, environment);
  EXPECT_EQ(loaded.config.seed, 4u);
  EXPECT_EQ(loaded.config.train.steps, 3);
  EXPECT_EQ(loaded.config.train.global_batch_size, 2);
  EXPECT_EQ(loaded.config.train.micro_batch_size, 1);
  EXPECT_EQ(loaded.place("seed"), "--set seed=4");
  EXPECT_EQ(loaded.place("train.micro_batch_size"), "c.yaml:4:59");
  EXPECT_TRUE(loaded.given("train.steps"));
  EXPECT_FALSE(loaded.given("train.precision"));
  EXPECT_EQ(loaded.place("train.precision"), "c.yaml");
}

TEST(Reader, SetTakesListsMapsAndFieldsOfTheModel) {
  const std::string file = "model: {config: {a: 1, nested: {x: 1}}}\ndata: {text: a}\ntrain: {steps: 7}\n";
  const Config config =
      load(file, {"data.text=[b, c]", "train.optimizer={type: sgd, betas: [0, .5]}", "train={precision: fp64}",
                  "model.config.a=1e-5", "model.config.nested.y={z: [1, 2.0, null, true, t]}"})
          .config;
  EXPECT_EQ(config.data.text, (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(config.train.optimizer.type, "sgd");
  EXPECT_EQ(config.train.optimizer.betas, (std::vector<double>{0, 0.5}));
  EXPECT_EQ(config.train.precision, "fp64");
  EXPECT_EQ(config.train.steps, 7);
  EXPECT_EQ(config.model.config_json, R"({"a":1e-05,"nested":{"x":1,"y":{"z":[1,2.0,null,true,"t"]}}})");
  EXPECT_EQ(error_of(file, {"model.config.a.b=1"})
                .rfind("--set model.config.a.b=1: model.config holds 1, not a map, before 'b'", 0),
            0u);
  EXPECT_EQ(error_of(file, {"model.config={b: 1}", "seed=x"}),
            "--set seed=x: seed must be an integer, not the text 'x'");
}

TEST(Reader, MalformedAssignments) {
  EXPECT_EQ(error_of(kBase, {"seed"}).rfind("--set seed: must be key=value", 0), 0u);
  EXPECT_EQ(error_of(kBase, {"=5"}).rfind("--set =5: must be key=value", 0), 0u);
  EXPECT_EQ(error_of(kBase, {"seed="}), "--set seed=: no value is given");
  EXPECT_EQ(error_of(kBase, {"train..steps=5"}), "--set train..steps=5: the key 'train..steps' has an empty part");
  EXPECT_EQ(error_of(kBase, {"train.=5"}), "--set train.=5: the key 'train.' has an empty part");
  EXPECT_EQ(error_of(kBase, {".=5"}), "--set .=5: the key '.' has an empty part");
  EXPECT_EQ(error_of(kBase, {"seed=1\n--- 2"}).rfind("--set seed=1\n--- 2: this starts a second document", 0), 0u);
  EXPECT_EQ(error_of(kBase, {"seed=\"5\" 6"}).find("no error"), std::string::npos);
  EXPECT_EQ(error_of(kBase, {"data.text=[a] b"}).find("no error"), std::string::npos);
  EXPECT_EQ(error_of(kBase, {}, {{"TETRA__", "5"}}), "TETRA__=5: the key '' has an empty part");
  EXPECT_EQ(error_of(kBase, {}, {{"TETRA__train__", "5"}}), "TETRA__train__=5: the key 'train__' has an empty part");
  EXPECT_EQ(error_of(kBase, {}, {{"TETRA__seed", "5"}, {"TETRA__SEED", "6"}}),
            "TETRA__SEED=6: seed is already set by TETRA__seed");
}

TEST(Reader, ModelConfigKeepsItsTypes) {
  const Config config = load(R"(
model:
  config:
    model_type: llama
    rms_norm_eps: 1e-5
    rope_theta: 5.0e5
    hidden_size: 1e3
    whole: 2.0
    negative: -3
    large: 18446744073709551615
    huge: 1e30
    flag: false
    nothing: null
    quoted: "5"
    word: "yes"
    list: [1, 2.5, a, [], {}]
    rope_scaling: {rope_type: llama3, factor: 8.0}
    id2label: {0: zero, on: x}
data: {text: a}
)")
                            .config;
  EXPECT_EQ(config.model.config_json,
            R"({"model_type":"llama","rms_norm_eps":1e-05,"rope_theta":500000.0,"hidden_size":1000,"whole":2.0,)"
            R"("negative":-3,"large":18446744073709551615,"huge":1e+30,"flag":false,"nothing":null,"quoted":"5",)"
            R"("word":"yes","list":[1,2.5,"a",[],{}],"rope_scaling":{"rope_type":"llama3","factor":8.0},)"
            R"("id2label":{"0":"zero","on":"x"}})");
}

TEST(Reader, FilesThatCannotBeRead) {
  const auto error = [](const std::string& path) {
    try {
      load_config({path, {}, {}});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(error("/nowhere/c.yaml"), "/nowhere/c.yaml: cannot be read: No such file or directory");
  EXPECT_EQ(error("/"), "/: is a folder, not a YAML file");
  EXPECT_EQ(error(""), "the configuration file's name is empty");
}

/// A value that differs from the default, for every type of key.
std::string other_value(const Field& field) {
  if (!field.rule.choices.empty()) {
    return field.rule.choices.back();
  }
  if (field.rule.json) {
    return R"({"a b": "x: y # z", "n": 1e-05, "l": [1, 2.0, null, {"\u00e9\n": "\"\\"}]})";
  }
  switch (field.member.index()) {
    case 3:
      return value_text(field, Config()) == "true" ? "false" : "true";
    case 4:
      return R"("odd: name #1, 'two' {3} [4]\té\n \\ .txt")";
    case 6:
      return R"([plain, "010", "yes", "null", "-x", "*.txt", " ", "1e5", "~"])";
    case 7:
      return "[0.1, 0.3333333333333333]";
    case 2:
    case 5:
      return "0.30000000000000004";
    default:
      return value_text(field, Config()) == "3" ? "2" : "3";
  }
}

TEST(Writer, EveryKeyReadsBackTheSame) {
  for (const Field& field : config_fields()) {
    Config config = load(kBase).config;
    std::vector<std::string> sets = {field.key + "=" + other_value(field)};
    if (field.key == "model.config") {
      sets.push_back("model.from=null");
    } else if (field.key == "data.tokens" || field.key == "data.labels" || field.key == "data.mask") {
      sets.insert(sets.end(), {"data.text=null", "data.tokens=x"});
    } else if (field.key == "train.optimizer.momentum" || field.key == "train.optimizer.nesterov") {
      sets.insert(sets.end(), {"train.optimizer.type=sgd", "train.optimizer.momentum=0.25"});
    }
    const Config changed = load(kBase, sets).config;
    if (field.rule.choices.size() != 1) {
      EXPECT_NE(value_text(field, changed), value_text(field, config)) << field.key;
    }
    const std::string yaml = write_config(changed);
    EXPECT_EQ(values(load(yaml).config), values(changed)) << yaml;
    EXPECT_EQ(write_config(load(yaml).config), yaml);
  }
}

TEST(Writer, TextsReadBackToTheByte) {
  const std::vector<std::string> texts = {"plain", "010",  "yes",  "null", "-x",      "*.txt",  " ",    "1e5",
                                          "~",     "a: b", "a #b", "'",    "\"",      "\\",     "\n\t", "é",
                                          "{x}",   "[",    "<<",   "!x",   "\x7f\x1", "a/b.txt"};
  Config config = load(kBase).config;
  for (const std::string& text : texts) {
    config.data.text = {text};
    config.export_dir = text;
    const Config back = load(write_config(config)).config;
    EXPECT_EQ(back.export_dir, text);
    EXPECT_EQ(back.data.text, config.data.text);
  }
}

TEST(Table, EveryKeyIsWhole) {
  for (const Field& field : config_fields()) {
    EXPECT_FALSE(field.meaning.empty()) << field.key;
    EXPECT_EQ(field.meaning.find('|'), std::string::npos) << field.key;
    EXPECT_EQ(&field, find_field(field.key)) << field.key << " stands twice";
    EXPECT_FALSE(is_section(field.key)) << field.key;
  }
}

TEST(Table, TheDocumentationListsTheSameKeys) {
  std::ifstream file(std::string(TETRA_TEST_DATA) + "/../docs/configuration.md");
  std::ostringstream text;
  text << file.rdbuf();
  std::istringstream rows(describe_keys());
  for (std::string row; std::getline(rows, row);) {
    EXPECT_NE(text.str().find(row + "\n"), std::string::npos) << "docs/configuration.md lacks this row:\n" << row;
  }
  size_t documented = 0;
  std::istringstream lines(text.str());
  for (std::string line; std::getline(lines, line);) {
    documented += line.rfind("| `", 0) == 0 && std::count(line.begin(), line.end(), '|') == 6 ? 1 : 0;
  }
  EXPECT_EQ(documented, config_fields().size()) << "docs/configuration.md has rows that are not keys";
}

TEST(Table, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("steps", "steps"), 0u);
  EXPECT_EQ(edit_distance("stepz", "steps"), 1u);
  EXPECT_EQ(edit_distance("setps", "steps"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

}  // namespace
}  // namespace tetra
