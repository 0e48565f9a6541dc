//===- Parser.cpp - tokens to the syntax tree -*- C++ -*-===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "frontend/Parser.h"

#include "frontend/ParserBase.h"

namespace cleave {

namespace {

/// Models and plans.
class Parser : ParserBase {
public:
  Parser(const SourceMap &sources, uint32_t file, Diagnostics &diagnostics)
      : ParserBase(sources, file, diagnostics) {}

  File run() {
    File result;
    skipNewlines();
    while (!atEnd()) {
      if (current().is("model")) {
        model(result);
      } else if (current().is("plan")) {
        plan(result);
      } else {
        std::string hint = meantHint(current().text, {"model", "plan"});
        if (hint.empty())
          hint = commentHint();
        if (hint.empty())
          hint = "a file has `model name(...) { ... }` and `plan name for model on (...) { ... }`";
        diagnostics.error(current().range, "expected `model` or `plan`, found " + found(), hint);
        skipToTopLevel();
      }
      skipNewlines();
    }
    return result;
  }

private:
  /// What to say about a comment as other languages write it.
  std::string commentHint() const {
    bool comment = (current().is("/") && (peek(1).is("/") || peek(1).is("*"))) ||
                   (current().is("-") && peek(1).is("-"));
    return comment ? "a comment starts with `#`" : "";
  }

  //===--------------------------------------------------------------------===//
  // Declarations
  //===--------------------------------------------------------------------===//

  bool hypers(std::vector<Hyper> &out) {
    SourceRange opened = previousRange();
    while (!current().is(")")) {
      Hyper hyper;
      if (!name(hyper.name, "the name of a hyperparameter"))
        return false;
      if (current().is(":"))
        return fail("`,` or `)`", "a hyperparameter has a name and a default, `" + hyper.name.text +
                                      " = 8`, and no type");
      if (accept("=") && !(hyper.value = expression()))
        return false;
      out.push_back(std::move(hyper));
      if (!accept(","))
        break;
    }
    return close(")", "after the hyperparameters", opened);
  }

  /// `a, b: i32[batch], c: f32` after the opening parenthesis.
  bool arguments(std::vector<Argument> &out) {
    SourceRange opened = previousRange();
    while (!current().is(")")) {
      Argument argument;
      if (!name(argument.name, "the name of an argument"))
        return false;
      out.push_back(std::move(argument));
      if (current().is(",")) {
        out.back().sharesType = true;
        advance();
        if (current().is(")"))
          return fail("another argument, or `:` and a type");
        continue;
      }
      if (!expect(":", "and the argument's type") || !type(out.back().type))
        return false;
      for (size_t i = out.size() - 1; i-- > 0 && out[i].sharesType && !out[i].type.range.valid();)
        out[i].type = out.back().type;
      if (!accept(","))
        break;
    }
    return close(")", "after the arguments", opened);
  }

  bool param(std::vector<Param> &out) {
    Param p;
    p.range = current().range;
    advance();
    if (!names(p.names, "the name of a param") ||
        !expect(":", "and the param's type", "as in `param w: [width, ffn] = normal(0.02)`") ||
        !type(p.type))
      return false;
    if (accept("=") && !(p.init = expression()))
      return false;
    p.range = join(p.range, previousRange());
    out.push_back(std::move(p));
    return endOfStatement();
  }

  bool part(std::vector<Part> &out) {
    Part p;
    p.range = current().range;
    advance();
    if (!names(p.names, "the name of a part") || !expect(":", "and the part's block") ||
        !name(p.block, "the name of a block"))
      return false;
    if (accept("(")) {
      p.hasArguments = true;
      if (!items(p.arguments, ")", previousRange()))
        return false;
    }
    while (accept("[")) {
      Name dim;
      SourceRange opened = previousRange();
      if (current().kind == TokenKind::Integer)
        return fail("the dim of the array of parts",
                    "dims have names: `dim copies = " + current().text + "`, and `[copies]`");
      if (!name(dim, "the dim of the array of parts") || !close("]", "after the dim", opened))
        return false;
      p.arrays.push_back(dim);
    }
    p.range = join(p.range, previousRange());
    out.push_back(std::move(p));
    return endOfStatement();
  }

  void function(std::vector<Function> &out) {
    Function f;
    f.isBlock = current().is("block");
    f.range = current().range;
    advance();
    bool ok = functionHead(f);
    f.range = join(f.range, previousRange());
    if (!ok) {
      // Read on at the body, if it is near: its faults are worth saying too.
      while (!atEnd() && !current().is("{") && !current().is("}") &&
             current().kind != TokenKind::Newline)
        advance();
      if (!current().is("{"))
        return skipStatement();
    }
    advance();
    body(f.body, &f);
    if (ok)
      out.push_back(std::move(f));
  }
  bool functionHead(Function &f) {
    if (!name(f.name, f.isBlock ? "the name of the block" : "the name of the function") ||
        !expect("(", "and the arguments"))
      return false;
    // `block mlp(hidden, rate = 0.0)(x: [...])`: the first list is static.
    size_t last = position;
    for (unsigned open = 0; last < tokens.size(); ++last) {
      if (tokens[last].is("(") || tokens[last].is("["))
        ++open;
      if (tokens[last].is(")") || tokens[last].is("]")) {
        if (open == 0)
          break;
        --open;
      }
      if (tokens[last].is("{") || tokens[last].kind == TokenKind::Newline)
        break;
    }
    if (last + 1 < tokens.size() && tokens[last].is(")") && tokens[last + 1].is("(")) {
      if (!f.isBlock)
        diagnostics.error(tokens[last + 1].range, "a function has one list of arguments",
                          "only a block has hyperparameters");
      if (!hypers(f.hypers) || !expect("(", "and the arguments"))
        return false;
    }
    if (!arguments(f.arguments))
      return false;
    if (accept("->")) {
      f.hasResults = true;
      if (accept("(")) {
        SourceRange opened = previousRange();
        while (!current().is(")")) {
          f.results.emplace_back();
          if (!type(f.results.back()))
            return false;
          if (!accept(","))
            break;
        }
        if (!close(")", "after the results", opened))
          return false;
      } else {
        f.results.emplace_back();
        if (!type(f.results.back()))
          return false;
      }
    }
    if (current().is("{"))
      return true;
    return fail("`{`", current().is(":") ? "a body stands in braces; results follow `->`" : "");
  }

  /// Statements up to the closing brace. `owner`: the block whose params and
  /// parts may stand here.
  void body(Body &out, Function *owner) {
    if (tooDeep())
      return;
    Deeper deeper(depth);
    SourceRange opened = previousRange();
    skipNewlines();
    while (!atEnd() && !current().is("}")) {
      if (startsDeclaration()) {
        diagnostics.error(current().range, "expected `}` before " + found())
            .notes.push_back({opened, "it is opened here"});
        return;
      }
      if (!statement(out, owner))
        skipStatement();
      skipNewlines();
    }
    close("}", "to close the body", opened);
  }
  /// What to say about a statement of another language.
  std::string statementHint() const {
    const std::string &word = current().text;
    if (current().kind == TokenKind::Keyword)
      return word == "for"    ? "a loop over a dim is `repeat i in dim { ... }`"
             : word == "else" ? "`else` stands on the line of the brace that closes `if ... { }`"
                              : "";
    if (current().kind != TokenKind::Name)
      return commentHint();
    bool operation = peek(1).is("+") || peek(1).is("-") || peek(1).is("*") || peek(1).is("/");
    if (operation && peek(2).is("="))
      return "write " + quoted(word + " = " + word + " " + peek(1).text + " ...");
    if (word == "while")
      return "a loop over a dim is `repeat i in dim { ... }`";
    if (word == "let" || word == "var" || word == "val" || word == "const" || word == "auto")
      return "leave out " + quoted(word) + ": `name = value`";
    std::string near = meantHint(word, {"if", "param", "part", "repeat", "return"});
    return near.empty() && (peek(1).is("(") || peek(1).is("."))
               ? "a value that is used has a name: `y = " + word + "...`"
               : near;
  }
  bool startsDeclaration() const {
    return current().is("fn") || current().is("block") || current().is("model") ||
           current().is("plan") || current().is("weights");
  }

  bool statement(Body &out, Function *owner) {
    if (current().is("param") || current().is("part")) {
      if (owner && owner->isBlock)
        return current().is("param") ? param(owner->params) : part(owner->parts);
      diagnostics.error(current().range,
                        quoted(current().text) + " stands in a model or a block, not here",
                        "move it to the model");
      return false;
    }
    if (current().is("dim") || current().is("free")) {
      diagnostics.error(current().range, "dims are declared in the model, not here",
                        "move it to the model");
      return false;
    }
    Stmt s;
    s.range = current().range;
    if (accept("return")) {
      s.kind = StmtKind::Return;
      if (!expressions(s.values))
        return false;
    } else if (accept("repeat")) {
      s.kind = StmtKind::Repeat;
      s.targets.emplace_back();
      if (!name(s.targets[0], "the name of the loop's index") ||
          !expect("in", "and the dim to repeat over", "as in `repeat i in layers { ... }`"))
        return false;
      if (current().kind == TokenKind::Integer)
        return fail("the dim to repeat over",
                    "dims have names: `dim turns = " + current().text + "` in the model");
      if (!name(s.over, "the dim to repeat over"))
        return false;
      s.range = join(s.range, previousRange());
      if (!expect("{", "and the loop's body",
                  "a loop runs over a dim: `repeat i in layers { ... }`"))
        return false;
      body(s.body, nullptr);
      out.push_back(std::move(s));
      return endOfBraces();
    } else if (accept("if")) {
      s.kind = StmtKind::If;
      s.values.push_back(expression());
      if (!s.values[0])
        return false;
      s.range = join(s.range, previousRange());
      if (!expect("{", "and what is done if it is true",
                  "as in `if pre_norm { ... } else { ... }`"))
        return false;
      body(s.body, nullptr);
      if (accept("else")) {
        s.hasElse = true;
        if (!expect("{", "and what is done else", "another `if` stands inside of the braces"))
          return false;
        body(s.otherwise, nullptr);
      }
      out.push_back(std::move(s));
      return endOfBraces();
    } else {
      if (!(current().kind == TokenKind::Name && (peek(1).is("=") || peek(1).is(",")))) {
        std::string hint = statementHint();
        return fail("a statement: `name = value`, `return value`, `repeat i in dim { ... }` or `if "
                    "condition { ... }`",
                    hint);
      }
      if (!names(s.targets, "a name") || !expect("=", "and a value") || !expressions(s.values))
        return false;
    }
    s.range = join(s.range, previousRange());
    out.push_back(std::move(s));
    return endOfStatement();
  }
  bool endOfBraces() {
    return current().is("}") || current().kind == TokenKind::Newline || atEnd() || endOfStatement();
  }
  bool expressions(std::vector<ExprPtr> &out) {
    do {
      ExprPtr e = expression();
      if (!e)
        return false;
      out.push_back(std::move(e));
    } while (accept(","));
    return true;
  }

  bool dims(Model &m, bool isFree) {
    advance();
    do {
      Dim d;
      d.range = current().range;
      if (!name(d.name, "the name of a dim"))
        return false;
      if (!isFree) {
        if (!expect("=", "and the dim's size") || !(d.value = expression()))
          return false;
      } else if (current().is("=")) {
        return fail("`,` or the end of the line",
                    "a free dim's size comes with the data; use `dim`");
      }
      d.range = join(d.range, previousRange());
      m.dims.push_back(std::move(d));
    } while (accept(","));
    return endOfStatement();
  }

  void model(File &file) {
    Model m;
    m.range = current().range;
    advance();
    if (!name(m.name, "the name of the model")) {
      skipToTopLevel();
      return;
    }
    m.range = join(m.range, m.name.range);
    if (accept("(") && !hypers(m.hypers))
      while (!atEnd() && !current().is("{") && current().kind != TokenKind::Newline)
        advance();
    if (!expect("{", "and the model's body")) {
      skipToTopLevel();
      return;
    }
    SourceRange opened = previousRange();
    skipNewlines();
    while (!atEnd() && !current().is("}")) {
      if (current().is("model") || current().is("plan"))
        break;
      if (!declaration(m))
        skipStatement();
      skipNewlines();
    }
    close("}", "to close the model", opened);
    file.models.push_back(std::move(m));
  }

  bool declaration(Model &m) {
    if (current().is("free") || current().is("dim"))
      return dims(m, current().is("free"));
    if (current().is("param"))
      return param(m.params);
    if (current().is("part"))
      return part(m.parts);
    if (current().is("fn") || current().is("block")) {
      function(m.functions);
      return true;
    }
    if (current().is("weights"))
      return weights(m);
    std::string hint = commentHint();
    if (hint.empty() && (current().is("def") || current().is("function")))
      hint = "did you mean `fn`?";
    if (hint.empty())
      hint = meantHint(current().text, {"free", "dim", "param", "part", "block", "fn", "weights"});
    if (hint.empty() && (current().is("shard") || current().is("at")))
      hint = "that stands in a plan";
    if (hint.empty() && peek(1).is("="))
      hint = "a dim is declared as `dim " + current().text + " = ...`";
    return fail("a declaration: free, dim, param, part, block, fn or weights", hint);
  }

  bool weights(Model &m) {
    Weights w;
    w.range = current().range;
    advance();
    if (!name(w.name, "the name of the weights' format") || !expect("{", "and the weights' names"))
      return false;
    SourceRange opened = previousRange();
    skipNewlines();
    while (!atEnd() && !current().is("}")) {
      Weight entry;
      entry.range = entry.fileRange = current().range;
      entry.file = current().text;
      bool ok = current().kind == TokenKind::String;
      if (!ok)
        fail("a weight's name in the file, in quotes");
      else
        advance();
      ok = ok && expect(":", "and the dims in the file") && type(entry.type) &&
           expect("=", "and the param") && (entry.value = expression());
      entry.range = join(entry.range, previousRange());
      if (ok) {
        w.entries.push_back(std::move(entry));
        ok = endOfStatement();
      }
      if (!ok)
        skipStatement();
      skipNewlines();
    }
    if (!close("}", "to close the weights", opened))
      return false;
    m.weights.push_back(std::move(w));
    return true;
  }

  //===--------------------------------------------------------------------===//
  // Plans
  //===--------------------------------------------------------------------===//

  void plan(File &file) {
    Plan p;
    p.range = current().range;
    advance();
    SourceRange opened;
    const std::string mesh = "as in `plan name for model on (dp, tp) { ... }`";
    bool ok = name(p.name, "the name of the plan") && expect("for", "and the model", mesh) &&
              name(p.model, "the name of the model") && expect("on", "and the mesh", mesh) &&
              expect("(", "and the mesh's axes", mesh);
    opened = previousRange();
    p.range = join(p.range, previousRange());
    while (ok && !current().is(")")) {
      PlanAxis axis;
      ok = name(axis.name, "the name of a mesh axis");
      if (ok && accept("=")) {
        axis.sizeRange = current().range;
        if (current().kind == TokenKind::Integer) {
          axis.size = current().integer;
          advance();
        } else {
          ok = fail("the axis's size");
        }
      }
      p.axes.push_back(std::move(axis));
      if (!accept(","))
        break;
    }
    ok = ok &&
         close(")", "after the axes", opened,
               current().is(":") ? "a size is written `tp = 2`" : "") &&
         expect("{", "and the plan's body");
    if (!ok) {
      while (!atEnd() && !current().is("{") && !current().is("model") && !current().is("plan"))
        advance();
      if (!accept("{"))
        return;
    }
    opened = previousRange();
    skipNewlines();
    while (!atEnd() && !current().is("}")) {
      if (current().is("model") || current().is("plan"))
        break;
      if (!directive(p))
        skipStatement();
      skipNewlines();
    }
    close("}", "to close the plan", opened);
    if (ok)
      file.plans.push_back(std::move(p));
  }

  bool directive(Plan &p) {
    static const std::vector<std::string> later = {"pipeline", "bucket",   "prefetch",
                                                   "offload",  "schedule", "ring"};
    static const std::string settings =
        "a plan has `shard ... by ...`, `accumulate N`, `recompute ...`, "
        "`gathered ...`, `precision ...`, `overlap ...`, `zero ...` and `at ...: ...`; with `auto` "
        "also `memory SIZE` and `never COLLECTIVE NAME`";
    if (current().is("shard")) {
      PlanRule rule;
      if (!planRule(rule))
        return false;
      p.rules.push_back(std::move(rule));
      return endOfStatement();
    }
    if (current().is("at"))
      return pin(p);
    if (current().is("auto")) {
      p.autos.push_back(current().range);
      advance();
      if (accept("hidden")) {
        p.hiddenRange = current().range;
        if (current().kind != TokenKind::Integer)
          return fail("how much of the gradients' sums runs beside other work, in percent",
                      "as in `auto hidden 100`; `auto` alone tries");
        p.hidden = current().integer;
        advance();
      }
      return endOfStatement();
    }
    if (current().is("never"))
      return never(p);
    if (current().is("memory"))
      return memory(p);
    if (current().is("overlap"))
      return overlap(p);
    if (current().is("zero"))
      return zero(p);
    if (current().is("accumulate"))
      return accumulate(p);
    if (current().is("recompute"))
      return recompute(p);
    if (current().is("gathered"))
      return gathered(p);
    if (current().is("precision"))
      return precision(p);
    if (current().is("replicate"))
      return fail("a setting",
                  "what no rule shards is replicated; to pin a value write `at NAME: replicate`");
    std::string word = current().text;
    if (std::find(later.begin(), later.end(), word) != later.end()) {
      diagnostics.readableError(
          current().range, quoted(word) + " is not available in this version of Cleave", settings);
      return false;
    }
    std::vector<std::string> known = {"shard",      "at",        "overlap",  "zero",
                                      "accumulate", "recompute", "gathered", "precision",
                                      "auto",       "memory",    "never"};
    known.insert(known.end(), later.begin(), later.end());
    std::string near = nearest(word, known);
    diagnostics.readableError(current().range, "a plan has no setting " + quoted(word),
                              near.empty() ? settings : "did you mean " + quoted(near) + "?");
    return false;
  }

  bool overlap(Plan &p) {
    PlanOverlap o;
    o.range = current().range;
    advance();
    const std::string form = "as in `overlap layers` or `overlap bucketed(25MB)`";
    if (!name(o.how, "when gradients are summed, " + form))
      return false;
    o.range = join(o.range, o.how.range);
    SourceRange opened = current().range;
    if (accept("(")) {
      o.bytesRange = current().range;
      if (current().kind != TokenKind::Bytes)
        return fail("a size", "with a unit (B, kB, MB, GB, KiB, MiB, GiB), " + form);
      o.bytes = current().integer;
      advance();
      if (!close(")", "after the size", opened))
        return false;
    }
    p.overlaps.push_back(std::move(o));
    return endOfStatement();
  }

  bool zero(Plan &p) {
    PlanZero zero;
    zero.range = current().range;
    advance();
    const std::string form = "as in `zero 2 over dp`";
    if (current().kind != TokenKind::Integer)
      return fail("a level, 0 to 3", form);
    zero.level = current().integer;
    zero.range = join(zero.range, current().range);
    advance();
    if (!expect("over", "and the mesh axes", form) || !names(zero.axes, "the name of a mesh axis"))
      return false;
    if (accept("offload") && !name(zero.offload.emplace(), "`optimizer`"))
      return false;
    p.zeros.push_back(std::move(zero));
    return endOfStatement();
  }

  bool accumulate(Plan &p) {
    PlanAccumulate a;
    a.range = current().range;
    advance();
    a.countRange = current().range;
    if (current().kind != TokenKind::Integer)
      return fail("the number of micro-batches", "as in `accumulate 4`");
    a.count = current().integer;
    advance();
    if (accept("over") && !name(a.dim, "the name of a dim"))
      return false;
    a.range = join(a.range, previousRange());
    p.accumulates.push_back(std::move(a));
    return endOfStatement();
  }

  bool recompute(Plan &p) {
    PlanRecompute r;
    advance();
    if (!name(r.policy, "`none`, `selective`, `full` or `every(LAYERS)`"))
      return false;
    SourceRange opened = current().range;
    if (accept("(")) {
      r.layersRange = current().range;
      if (current().kind != TokenKind::Integer)
        return fail("the number of layers of a group", "as in `recompute every(4)`");
      r.layers = current().integer;
      advance();
      if (!close(")", "after the number of layers", opened))
        return false;
    }
    p.recomputes.push_back(std::move(r));
    return endOfStatement();
  }

  bool gathered(Plan &p) {
    PlanGathered g;
    advance();
    if (!name(g.how, "`again` or `kept`"))
      return false;
    p.gathereds.push_back(std::move(g));
    return endOfStatement();
  }

  bool precision(Plan &p) {
    PlanPrecision precision;
    precision.range = current().range;
    advance();
    const std::string form = "as in `precision bf16 master f32 reduce f32`";
    if (!name(precision.compute, "the type of activations and of what products read, " + form) ||
        (accept("master") &&
         !name(precision.master, "the type of params as they learn, " + form)) ||
        (accept("reduce") && !name(precision.reduce, "the type in which ranks add, " + form)))
      return false;
    precision.range = join(precision.range, previousRange());
    p.precisions.push_back(std::move(precision));
    return endOfStatement();
  }

  bool never(Plan &p) {
    PlanNever never;
    never.range = current().range;
    advance();
    const std::string form = "as in `never all_gather wte`";
    if (!name(never.kind, "a collective, " + form) ||
        !path(never.path, never.pathRange, "the name of a param or a value, " + form))
      return false;
    never.range = join(never.range, previousRange());
    p.nevers.push_back(std::move(never));
    return endOfStatement();
  }

  bool memory(Plan &p) {
    PlanMemory memory;
    memory.range = current().range;
    advance();
    if (current().kind != TokenKind::Bytes)
      return fail("the memory of a rank", "with a unit (B, kB, MB, GB, KiB, MiB, GiB), as in "
                                          "`memory 24GB`");
    memory.bytes = current().integer;
    memory.range = join(memory.range, current().range);
    advance();
    p.memories.push_back(memory);
    return endOfStatement();
  }

  /// `forward.logits`
  bool path(std::string &out, SourceRange &range, const std::string &what) {
    range = current().range;
    Name part;
    if (!name(part, what))
      return false;
    out = part.text;
    while (accept(".")) {
      if (!name(part, "a name after `.`"))
        return false;
      out += "." + part.text;
    }
    range = join(range, previousRange());
    return true;
  }

  bool pin(Plan &p) {
    PlanPin pin;
    pin.range = current().range;
    advance();
    pin.pathRange = current().range;
    if (accept("[")) {
      if (!names(pin.dims, "the name of a dim") || !close("]", "after the dims", pin.pathRange))
        return false;
      pin.pathRange = join(pin.pathRange, previousRange());
    } else if (!path(pin.path, pin.pathRange, "the name of a value, such as `forward.logits`")) {
      return false;
    }
    if (!expect(":", "and `shard ...` or `replicate`",
                "as in `at forward.logits: replicate over tp`"))
      return false;
    if (current().is("replicate")) {
      pin.rule.range = current().range;
      pin.rule.replicate = true;
      pin.rule.alternatives.emplace_back();
      advance();
      if (accept("over") && !axes(pin.rule.alternatives[0].axes))
        return false;
      pin.rule.range = join(pin.rule.range, previousRange());
    } else if (current().is("zero")) {
      pin.zero = true;
      pin.rule.range = current().range;
      pin.rule.alternatives.emplace_back();
      advance();
      if (current().kind != TokenKind::Integer)
        return fail("a level, 0 to 3", "as in `at body.wq: zero 2 over dp`");
      pin.level = current().integer;
      advance();
      if (accept("over") && !axes(pin.rule.alternatives[0].axes))
        return false;
      pin.rule.range = join(pin.rule.range, previousRange());
    } else if (!current().is("shard")) {
      return fail("`shard`, `replicate` or `zero`",
                  meantHint(current().text, {"shard", "replicate", "zero"}));
    } else if (!planRule(pin.rule)) {
      return false;
    }
    pin.range = join(pin.range, previousRange());
    p.pins.push_back(std::move(pin));
    return endOfStatement();
  }

  /// `dp, tp`, or a part of an axis: `tp:(2)4` is the digit of 4 ranks behind a major part of 2.
  bool axes(std::vector<Name> &out) {
    do {
      Name next;
      if (!name(next, "the name of a mesh axis"))
        return false;
      if (accept(":")) {
        const std::string form = "as in `tp:(2)4`: of the axis's ranks in groups of 2 and 4";
        auto number = [&](const std::string &what) {
          if (current().kind != TokenKind::Integer)
            return fail(what, form);
          next.text += std::to_string(current().integer);
          advance();
          return true;
        };
        next.text += ":(";
        if (!expect("(", "and the part of the axis", form) || !number("the major part's ranks"))
          return false;
        next.text += ")";
        if (!expect(")", "after the major part's ranks", form) || !number("the part's ranks"))
          return false;
        next.range = join(next.range, previousRange());
      }
      out.push_back(std::move(next));
    } while (accept(","));
    return true;
  }

  bool planRule(PlanRule &rule) {
    rule.range = current().range;
    advance();
    const std::string form = "as in `shard heads, ffn by tp`";
    do {
      PlanAlternative next;
      do {
        if (current().is("by") || current().is("else"))
          return fail("the name of a dim", form);
        next.dims.emplace_back();
        if (!name(next.dims.back(), "the name of a dim"))
          return false;
      } while (accept(","));
      if (accept("by") && !axes(next.axes))
        return false;
      rule.alternatives.push_back(std::move(next));
    } while (accept("else"));
    rule.range = join(rule.range, previousRange());
    if (rule.alternatives.back().axes.empty())
      return fail("`by` and the mesh axes", form);
    return true;
  }
};

} // namespace

ast::File parse(const SourceMap &sources, uint32_t file, Diagnostics &diagnostics) {
  return Parser(sources, file, diagnostics).run();
}

} // namespace cleave
