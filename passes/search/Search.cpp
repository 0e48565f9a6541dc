//===- Search.cpp - the cheapest sharding of every value ------------------===//
// Part of Cleave, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//
#include "passes/search/Search.h"

#include "ir/Auto.h"
#include "ir/Work.h"
#include "passes/Location.h"
#include "passes/search/Space.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"

#include <chrono>
#include <limits>
#include <set>

using namespace mlir;
using namespace cleave;

namespace {

constexpr double never = std::numeric_limits<double>::infinity();

/// Writes the problem: the tables over the space's variables.
class Writer {
public:
  /// `sentences`: what the plan says is a constraint with a name, instead of all that there is.
  Writer(const ShardingContext &context, func::FuncOp function, const ParamFlow &flow,
         Prices &prices, bool sentences = false)
      : context(context), function(function), flow(flow), prices(prices),
        space(context, function, flow, sentences) {
    auto settings = function->getParentOfType<ModuleOp>()->getAttrOfType<DictionaryAttr>(kAutoAttr);
    if (auto hidden = settings ? settings.getAs<IntegerAttr>(kAutoHidden) : IntegerAttr())
      exposed = 1 - static_cast<double>(hidden.getInt()) / 100;
  }

  std::shared_ptr<ChoiceProblem> build();
  /// What the choices mean.
  void read(const std::vector<int> &choice, SearchResult &result);
  std::vector<SearchVariable> variables() const;
  void remark(const std::vector<int> &choice) const;

private:
  std::vector<std::string> sentences(const SpaceVariable &variable, int choice) const;

  /// An op whose factors are chosen, and those that share its choice: the same op elsewhere.
  struct Chosen {
    int variable = -1;
    SmallVector<Operation *> ops;
  };
  struct Tree {
    SmallVector<Value> leaves;
    Value root;
  };

  std::string sourceOf(const std::string &sentence) const;
  void readBans();
  void addSentences();
  void findTrees();
  void charge(ShardableOpInterface op, const ShardingRule &rule, int variable,
              const std::vector<Factors> &factors, double times);
  void following(ShardableOpInterface op, const ShardingRule &rule);
  void choosing(ShardableOpInterface op, const ShardingRule &rule);
  void tree(const Tree &tree);
  void gathers();
  void memory();

  Routes &routesOf(NamedTensorType type);
  const std::vector<int> &numbersOf(SpacePlace place, NamedTensorType type);
  double timesOf(Operation *op) const;
  /// What of a result's way counts: sums of gradients may run beside other work.
  double exposedOf(Value v) const {
    auto it = flow.places.find(v);
    return it != flow.places.end() && it->second.role == ParamFlow::Role::Gradient ? exposed : 1;
  }
  double workOf(ShardableOpInterface op, const ShardingRule &rule, const Factors &factors);
  Sharding needOf(const ShardingRule &rule, const Factors &factors, unsigned operand) const;
  Sharding madeOf(const ShardingRule &rule, const Factors &factors, unsigned result) const;
  Factors factorsAtHome(const ShardingRule &rule, const Sharding &home) const;

  std::vector<double> &unary(int variable) {
    auto &costs = singles[variable];
    costs.resize(space.variables()[variable].size());
    return costs;
  }
  /// The table of two variables, and whether it is stored the other way round.
  void addPair(int a, int b, double times, llvm::function_ref<double(int, int)> cost);
  /// Between the sharding of number `from[choice of a]` and where the value lives (or rests).
  void addWays(int a, ArrayRef<int> from, Value v, SpacePlace to, double times, bool towards);
  struct Ban {
    RouteStep::Kind kind;
    std::string path, source;
  };
  const Ban *broken(Value v, int from, int to);
  /// What the plan says the value never does: a table of what would.
  void banChoice(Value v, size_t choice, int from, int to);
  void forbid(int a, ArrayRef<int> from, Value v, SpacePlace to, bool towards);

  const ShardingContext &context;
  func::FuncOp function;
  const ParamFlow &flow;
  Prices &prices;
  Space space;
  double exposed = 1;
  std::map<int, std::vector<double>> singles;
  std::map<std::pair<int, int>, std::vector<double>> pairs;
  std::vector<CostTable> others;
  std::map<int, std::vector<double>> bytes;
  llvm::DenseMap<Type, std::unique_ptr<Routes>> routes;
  std::map<std::tuple<SpacePlace, const void *>, std::vector<int>> numbers;
  std::map<std::string, Chosen> chosen;
  llvm::DenseMap<Operation *, int> variableOf; ///< of ops that choose
  std::vector<Tree> trees;
  llvm::DenseSet<Value> leaves;
  std::vector<Ban> bans;
  std::map<std::tuple<const void *, int, int>, int> kindsOnWay; ///< bits, by type
};

bool isChosen(ShardableOpInterface op, const ShardingRule &rule) {
  if (rule.results.empty())
    return false;
  for (auto [f, factor] : llvm::enumerate(rule.factors)) {
    if (factor.kind == FactorKind::Blocked || factor.kind == FactorKind::Partial)
      continue;
    if (factor.kind != FactorKind::Parallel ||
        !llvm::is_contained(rule.results[0], static_cast<int>(f)))
      return true;
  }
  return false;
}

Routes &Writer::routesOf(NamedTensorType type) {
  std::unique_ptr<Routes> &entry = routes[type];
  if (!entry)
    entry = std::make_unique<Routes>(context, type, prices, space.homesOf(type));
  return *entry;
}

const std::vector<int> &Writer::numbersOf(SpacePlace place, NamedTensorType type) {
  auto [entry, isNew] = numbers.try_emplace({place, type.getAsOpaquePointer()});
  if (isNew) {
    Routes &table = routesOf(type);
    int size = place.variable < 0 ? 1 : space.variables()[place.variable].size();
    for (int c = 0; c < size; ++c)
      entry->second.push_back(table.number(space.shardingOf(place, c, type)));
  }
  return entry->second;
}

/// How often an op runs in a step.
double Writer::timesOf(Operation *op) const {
  double times = 1;
  if (!isUpdate(op))
    for (auto [i, atom] : llvm::enumerate(context.getAtoms()))
      if (context.isInTime(static_cast<int>(i)))
        times *= static_cast<double>(atom.size);
  for (Operation *at = op->getParentOp(); at; at = at->getParentOp())
    if (auto repeat = dyn_cast<RepeatOp>(at))
      times *= static_cast<double>(repeat.getCount());
  return times;
}

double Writer::workOf(ShardableOpInterface op, const ShardingRule &rule, const Factors &factors) {
  SmallVector<int64_t> extents;
  for (auto [factor, atoms] : llvm::zip_equal(rule.factors, factors))
    extents.push_back(context.block(factor.size, atoms));
  return prices.work(cleave::workOf(op, rule, extents));
}

Sharding Writer::needOf(const ShardingRule &rule, const Factors &factors, unsigned operand) const {
  Sharding need;
  for (int f : rule.operands[operand])
    need.dims.push_back(factors[f]);
  return need;
}

Sharding Writer::madeOf(const ShardingRule &rule, const Factors &factors, unsigned result) const {
  Sharding made;
  for (int f : rule.results[result])
    made.dims.push_back(factors[f]);
  for (auto [f, atoms] : llvm::enumerate(factors))
    if (!atoms.empty() && rule.leavesUnreduced(static_cast<int>(f), result)) {
      FactorKind kind = rule.factors[f].kind;
      made.reduction = kind == FactorKind::Max   ? Reduction::Max
                       : kind == FactorKind::Min ? Reduction::Min
                                                 : Reduction::Sum;
      // Sums over micro-batches send nothing.
      for (int atom : atoms)
        if (!context.isInTime(atom))
          made.unreduced.push_back(atom);
    }
  return made;
}

/// Of an op that goes as its result does.
Factors Writer::factorsAtHome(const ShardingRule &rule, const Sharding &home) const {
  Factors factors(rule.factors.size());
  for (auto [d, f] : llvm::enumerate(rule.results[0]))
    if (rule.factors[f].kind == FactorKind::Parallel)
      factors[f] = home.dims[d];
  return factors;
}

void Writer::addPair(int a, int b, double times, llvm::function_ref<double(int, int)> cost) {
  int sizeA = space.variables()[a].size(), sizeB = space.variables()[b].size();
  if (a == b) {
    std::vector<double> &costs = unary(a);
    for (int i = 0; i < sizeA; ++i)
      costs[i] += times * cost(i, i);
    return;
  }
  bool turned = a > b;
  std::vector<double> &costs = pairs[turned ? std::pair(b, a) : std::pair(a, b)];
  costs.resize(static_cast<size_t>(sizeA) * static_cast<size_t>(sizeB));
  for (int i = 0; i < sizeA; ++i)
    for (int j = 0; j < sizeB; ++j)
      costs[turned ? j * sizeA + i : i * sizeB + j] += times * cost(i, j);
}

void Writer::addWays(int a, ArrayRef<int> from, Value v, SpacePlace to, double times,
                     bool towards) {
  NamedTensorType type = tensorOf(v);
  forbid(a, from, v, to, towards);
  Routes &table = routesOf(type);
  const std::vector<int> &there = numbersOf(to, type);
  auto price = [&](int i, int j) {
    return towards ? table.price(from[i], there[j]) : table.price(there[j], from[i]);
  };
  if (to.variable < 0) {
    std::vector<double> &costs = unary(a);
    for (size_t i = 0; i < from.size(); ++i)
      costs[i] += times * price(static_cast<int>(i), 0);
    return;
  }
  addPair(a, to.variable, times, price);
}

/// A `never` of the plan that the value's way would break, or null.
const Writer::Ban *Writer::broken(Value v, int from, int to) {
  if (bans.empty() || from == to)
    return nullptr;
  auto place = flow.places.find(v);
  auto name = dyn_cast<NameLoc>(v.getLoc());
  for (const Ban &ban : bans) {
    bool meant = place != flow.places.end()
                     ? space.variables()[place->second.param].name == ban.path
                     : name && name.getName() == ban.path;
    if (!meant)
      continue;
    NamedTensorType type = tensorOf(v);
    auto [entry, isNew] = kindsOnWay.try_emplace({type.getAsOpaquePointer(), from, to}, 0);
    if (isNew)
      for (const RouteStep &step :
           routeOf(context, type, routesOf(type).sharding(from), routesOf(type).sharding(to),
                   [&](const RouteStep &s, int64_t bytes) { return prices.step(s, bytes); }))
        entry->second |= 1 << static_cast<int>(step.kind);
    if (entry->second >> static_cast<int>(ban.kind) & 1)
      return &ban;
  }
  return nullptr;
}

void Writer::forbid(int a, ArrayRef<int> from, Value v, SpacePlace to, bool towards) {
  if (bans.empty())
    return;
  const std::vector<int> there = numbersOf(to, tensorOf(v));
  std::map<std::string, CostTable> tables;
  for (size_t i = 0; i < from.size(); ++i)
    for (size_t j = 0; j < there.size(); ++j)
      if (const Ban *ban = towards ? broken(v, from[i], there[j]) : broken(v, there[j], from[i])) {
        if (a == to.variable && i != j)
          continue;
        CostTable &table = tables[ban->source];
        bool one = to.variable < 0 || a == to.variable;
        table.variables = one ? std::vector<int>{a} : std::vector<int>{a, to.variable};
        table.costs.resize(one ? from.size() : from.size() * there.size());
        table.costs[one ? i : i * there.size() + j] = never;
        table.source = ban->source;
      }
  for (auto &[source, table] : tables)
    others.push_back(std::move(table));
}

/// Of a param, whose way depends on its own choice alone.
void Writer::banChoice(Value v, size_t choice, int from, int to) {
  if (const Ban *ban = broken(v, from, to)) {
    int variable = space.placeOf(v).variable;
    CostTable table{
        {variable}, std::vector<double>(space.variables()[variable].size()), {}, ban->source};
    table.costs[choice] = never;
    others.push_back(std::move(table));
  }
}

/// An op's work, and the ways of its operands, for each choice of the variable that splits it.
void Writer::charge(ShardableOpInterface op, const ShardingRule &rule, int variable,
                    const std::vector<Factors> &factors, double times) {
  std::vector<double> &costs = unary(variable);
  for (size_t c = 0; c < factors.size(); ++c)
    costs[c] += times * workOf(op, rule, factors[c]);
  for (auto [i, v] : llvm::enumerate(op->getOperands())) {
    auto type = dyn_cast<NamedTensorType>(v.getType());
    if (!type || type.getRank() == 0)
      continue;
    std::vector<int> need;
    for (const Factors &f : factors)
      need.push_back(routesOf(type).number(needOf(rule, f, static_cast<unsigned>(i))));
    addWays(variable, need, v, space.placeOf(v), times, /*towards=*/false);
  }
}

void Writer::following(ShardableOpInterface op, const ShardingRule &rule) {
  auto result = dyn_cast<NamedTensorType>(op->getResult(0).getType());
  SpacePlace place = space.placeOf(op->getResult(0));
  double times = timesOf(op);
  if (!result || place.variable < 0)
    return; // scalars: the same on all ranks
  int variable = place.variable, size = space.variables()[variable].size();
  std::vector<Factors> factors;
  for (int c = 0; c < size; ++c)
    factors.push_back(factorsAtHome(rule, space.shardingOf(place, c, result)));
  charge(op, rule, variable, factors, times);
  for (auto [r, v] : llvm::enumerate(op->getResults())) {
    NamedTensorType type = tensorOf(v);
    std::vector<int> made;
    for (int c = 0; c < size; ++c)
      made.push_back(routesOf(type).number(madeOf(rule, factors[c], static_cast<unsigned>(r))));
    SpacePlace rest = space.restOf(v);
    if (!(rest ==
          space.placeOf(v))) { // a param's new value: whole again, unless it lives in shards
      const auto &shards = space.variables()[variable].shards;
      const std::vector<int> &whole = numbersOf(rest, type);
      for (int c = 0; c < size; ++c)
        if (shards[c].level < 3) {
          unary(variable)[c] += times * routesOf(type).price(made[c], whole[c]);
          banChoice(v, c, made[c], whole[c]);
        }
      continue;
    }
    addWays(variable, made, v, rest, times * exposedOf(v), /*towards=*/true);
  }
}

void Writer::choosing(ShardableOpInterface op, const ShardingRule &rule) {
  // The same op in the same places makes the same choice.
  std::string key = rule.toString();
  bool isLeaf = llvm::any_of(op->getResults(), [&](Value v) { return leaves.contains(v); });
  llvm::raw_string_ostream os(key);
  auto note = [&](Value v, SpacePlace place) {
    os << "|" << place.variable << (place.ofShard ? "s" : "") << " ";
    if (auto type = dyn_cast<NamedTensorType>(v.getType()))
      os << type.getElementType();
  };
  for (Value v : op->getOperands())
    note(v, space.placeOf(v));
  for (Value v : op->getResults())
    note(v, space.restOf(v));
  os << op->getName() << timesOf(op);
  if (isLeaf)
    os << op.getOperation();
  Chosen &entry = chosen[key];
  entry.ops.push_back(op);
  if (entry.ops.size() == 1) {
    SpaceVariable variable(SpaceVariable::Kind::Op, op->getName().stripDialect().str());
    variable.factors = space.factorsOf(op, rule);
    entry.variable = space.add(std::move(variable));
  }
  variableOf[op] = entry.variable;
  double times = timesOf(op);
  const std::vector<Factors> factors = space.variables()[entry.variable].factors;
  charge(op, rule, entry.variable, factors, times);
  for (auto [r, v] : llvm::enumerate(op->getResults())) {
    if (leaves.contains(v))
      continue;
    NamedTensorType type = tensorOf(v);
    std::vector<int> made;
    for (const Factors &f : factors)
      made.push_back(routesOf(type).number(madeOf(rule, f, static_cast<unsigned>(r))));
    addWays(entry.variable, made, v, space.restOf(v), times * exposedOf(v), /*towards=*/true);
  }
}

/// Additions of partial sums that no other op reads: one reduction at the end may do.
void Writer::findTrees() {
  llvm::DenseSet<Operation *> passing;
  SmallVector<Operation *> inOrder;
  auto offers = [&](Value v, Operation *user) {
    auto op = v.getDefiningOp<ShardableOpInterface>();
    if (!op || !v.hasOneUse() || op->getBlock() != user->getBlock())
      return false;
    if (passing.contains(op))
      return true;
    ShardingRule rule = op.getShardingRule();
    if (!isChosen(op, rule) || op->getNumResults() != 1)
      return false;
    for (size_t f = 0; f < rule.factors.size(); ++f)
      if (rule.factors[f].kind == FactorKind::Sum && rule.leavesUnreduced(static_cast<int>(f), 0))
        return true;
    return false;
  };
  function.walk<WalkOrder::PreOrder>([&](ShardableOpInterface op) {
    if (op->getNumOperands() != 2 || op->getNumResults() != 1 || !isElementwise(op))
      return;
    if (llvm::is_contained(op.getShardingRule().sumPasses, std::vector<int>{0, 1}) &&
        offers(op->getOperand(0), op) && offers(op->getOperand(1), op)) {
      passing.insert(op);
      inOrder.push_back(op);
    }
  });
  for (Operation *op : inOrder) {
    if (op->getResult(0).hasOneUse() && passing.contains(*op->getResult(0).getUsers().begin()))
      continue;
    Tree tree{{}, op->getResult(0)};
    SmallVector<Value> open{op->getOperand(1), op->getOperand(0)};
    while (!open.empty()) {
      Value v = open.pop_back_val();
      if (passing.contains(v.getDefiningOp())) {
        open.append({v.getDefiningOp()->getOperand(1), v.getDefiningOp()->getOperand(0)});
        continue;
      }
      tree.leaves.push_back(v);
      leaves.insert(v);
    }
    trees.push_back(std::move(tree));
  }
}

void Writer::tree(const Tree &tree) {
  SpaceVariable variable(SpaceVariable::Kind::Pending, "pending");
  variable.atoms.emplace_back();
  SmallVector<int> atoms;
  for (int a = 0; a < static_cast<int>(context.getAtoms().size()); ++a)
    if (!context.isInTime(a))
      atoms.push_back(a);
  for (unsigned set = 1; set < (1u << atoms.size()); ++set) {
    SmallVector<int, 2> &list = variable.atoms.emplace_back();
    for (auto [i, atom] : llvm::enumerate(atoms))
      if (set >> i & 1)
        list.push_back(atom);
  }
  const std::vector<SmallVector<int, 2>> sets = variable.atoms;
  int pending = space.add(std::move(variable));
  SpacePlace rest = space.restOf(tree.root);
  NamedTensorType type = tensorOf(tree.root);
  int homes = rest.variable < 0 ? 1 : space.variables()[rest.variable].size();
  // Scalars live in one way.
  auto with = [](std::vector<int> variables, SpacePlace place) {
    if (place.variable >= 0)
      variables.push_back(place.variable);
    return variables;
  };
  double times = timesOf(tree.root.getDefiningOp());
  // Where the sum is while it is pending: as it will live, but not yet split by what it is over.
  auto waiting = [&](size_t set, int home, NamedTensorType of) {
    Sharding s = space.shardingOf(rest, home, of);
    for (auto &dim : s.dims)
      llvm::erase_if(dim, [&](int a) { return llvm::is_contained(sets[set], a); });
    s.unreduced = sets[set];
    return routesOf(of).number(s);
  };
  auto banned = [&](std::vector<int> variables, size_t entries,
                    llvm::function_ref<const Ban *(size_t)> which) {
    if (bans.empty())
      return;
    std::map<std::string, CostTable> tables;
    for (size_t i = 0; i < entries; ++i)
      if (const Ban *ban = which(i)) {
        CostTable &table = tables[ban->source];
        table.variables = variables;
        table.costs.resize(entries);
        table.costs[i] = never;
        table.source = ban->source;
      }
    for (auto &[source, table] : tables)
      others.push_back(std::move(table));
  };
  CostTable end{with({pending}, rest), {}, {}, ""};
  const std::vector<int> there = numbersOf(rest, type);
  for (size_t set = 0; set < sets.size(); ++set)
    for (int home = 0; home < homes; ++home)
      end.costs.push_back(set ? times * exposedOf(tree.root) *
                                    routesOf(type).price(waiting(set, home, type), there[home])
                              : 0);
  banned(end.variables, end.costs.size(), [&](size_t i) {
    size_t set = i / homes, home = i % homes;
    return set ? broken(tree.root, waiting(set, static_cast<int>(home), type), there[home])
               : nullptr;
  });
  others.push_back(std::move(end));
  for (Value leaf : tree.leaves) {
    auto op = leaf.getDefiningOp<ShardableOpInterface>();
    ShardingRule rule = op.getShardingRule();
    NamedTensorType of = tensorOf(leaf);
    int choosing = variableOf.lookup(op);
    const std::vector<Factors> &factors = space.variables()[choosing].factors;
    std::vector<Sharding> made;
    std::vector<int> from;
    for (const Factors &f : factors) {
      made.push_back(madeOf(rule, f, 0));
      from.push_back(routesOf(of).number(made.back()));
    }
    // Reduced at the leaf, to where the leaf lives; ...
    SpacePlace place = space.placeOf(leaf);
    const std::vector<int> own = numbersOf(place, of);
    CostTable early{with({pending, choosing}, place), {}, {}, ""};
    for (size_t set = 0; set < sets.size(); ++set)
      for (size_t c = 0; c < factors.size(); ++c)
        for (int home : own)
          early.costs.push_back(set ? 0 : times * routesOf(of).price(from[c], home));
    banned(early.variables, early.costs.size(), [&](size_t i) {
      size_t set = i / (factors.size() * own.size());
      return set ? nullptr
                 : broken(leaf, from[i / own.size() % factors.size()], own[i % own.size()]);
    });
    others.push_back(std::move(early));
    // ... or left pending, over just these axes.
    CostTable late{with({pending, choosing}, rest), {}, {}, ""};
    for (size_t set = 0; set < sets.size(); ++set)
      for (size_t c = 0; c < factors.size(); ++c) {
        SmallVector<int, 2> unreduced(made[c].unreduced);
        llvm::sort(unreduced);
        bool same = unreduced == sets[set];
        for (int home = 0; home < homes; ++home)
          late.costs.push_back(!set   ? 0
                               : same ? times * routesOf(of).price(from[c], waiting(set, home, of))
                                      : never);
      }
    others.push_back(std::move(late));
  }
}

/// Params in shards are made whole once in each block and pass that reads them.
void Writer::gathers() {
  for (auto &[v, place] : flow.places) {
    if (place.role != ParamFlow::Role::Param && place.role != ParamFlow::Role::Slice)
      continue;
    std::set<std::pair<Block *, std::string>> readers;
    double times = 0;
    for (Operation *user : v.getUsers()) {
      if (!isa<ShardableOpInterface>(user) || isUpdate(user) || isa<SplitDimOp>(user) ||
          llvm::any_of(user->getResults(), [&](Value r) {
            auto it = flow.places.find(r);
            return it != flow.places.end() && it->second.role == ParamFlow::Role::Slice;
          }))
        continue;
      auto phase = user->getAttrOfType<StringAttr>(kPhase);
      if (readers.insert({user->getBlock(), phase ? phase.str() : ""}).second)
        times += timesOf(user);
    }
    NamedTensorType type = tensorOf(v);
    int variable = static_cast<int>(place.param);
    const auto &shards = space.variables()[variable].shards;
    const std::vector<int> &whole = numbersOf({variable, false}, type);
    const std::vector<int> &shard = numbersOf({variable, true}, type);
    for (size_t c = 0; c < shards.size(); ++c)
      if (shards[c].level == 3 && times > 0) {
        unary(variable)[c] += times * routesOf(type).price(shard[c], whole[c]);
        banChoice(v, c, shard[c], whole[c]);
      }
  }
}

/// What is there for the whole step: params, state, and what layers save.
void Writer::memory() {
  auto bytesOf = [&](NamedTensorType type, const Sharding &s) {
    return elementsOfRank(context, type, s) * static_cast<double>(type.getElementBytes());
  };
  auto add = [&](SpacePlace place, NamedTensorType type, bool byLevel) {
    if (place.variable < 0)
      return;
    const SpaceVariable &variable = space.variables()[place.variable];
    auto &list = bytes[place.variable];
    list.resize(variable.size());
    for (int c = 0; c < variable.size(); ++c) {
      SpacePlace at = place;
      if (byLevel)
        at.ofShard = variable.shards[c].level == 3;
      list[c] += bytesOf(type, space.shardingOf(at, c, type));
    }
  };
  for (BlockArgument arg : function.getArguments())
    if (auto type = dyn_cast<NamedTensorType>(arg.getType())) {
      auto it = flow.places.find(arg);
      add(space.placeOf(arg), type,
          it != flow.places.end() && it->second.role == ParamFlow::Role::Param);
    }
  function.walk([&](RepeatOp repeat) {
    for (auto [i, v] : llvm::enumerate(repeat.getResults()))
      if (i >= repeat.getNumCarried())
        add(space.placeOf(v), tensorOf(v), false);
  });
}

/// "plan.cleave:12:3: never all_gather wte", or without a place.
std::string Writer::sourceOf(const std::string &sentence) const {
  auto settings = function->getParentOfType<ModuleOp>()->getAttrOfType<DictionaryAttr>(kAutoAttr);
  auto places = settings ? settings.getAs<DictionaryAttr>(kAutoPlaces) : DictionaryAttr();
  auto place = places ? places.getAs<StringAttr>(sentence) : StringAttr();
  return (place ? place.str() + ": " : "") + "`" + sentence + "`";
}

void Writer::readBans() {
  auto settings = function->getParentOfType<ModuleOp>()->getAttrOfType<DictionaryAttr>(kAutoAttr);
  auto list = settings ? settings.getAs<ArrayAttr>(kAutoNever) : ArrayAttr();
  if (!list)
    return;
  for (ArrayAttr entry : list.getAsRange<ArrayAttr>()) {
    StringRef kind = cast<StringAttr>(entry[0]).getValue();
    std::string path = cast<StringAttr>(entry[1]).str();
    using Kind = RouteStep::Kind;
    bans.push_back({kind == "all_reduce"       ? Kind::AllReduce
                    : kind == "all_gather"     ? Kind::AllGather
                    : kind == "reduce_scatter" ? Kind::ReduceScatter
                                               : Kind::AllToAll,
                    path, sourceOf(("never " + kind + " ").str() + path)});
  }
}

/// What the plan's rules and pins allow of each variable, as tables with their sentences: to say
/// which of them conflict.
void Writer::addSentences() {
  for (auto [v, variable] : llvm::enumerate(space.variables()))
    for (const SpaceVariable::Sentence &sentence : variable.sentences) {
      CostTable table{{static_cast<int>(v)},
                      std::vector<double>(variable.size(), never),
                      {},
                      sourceOf(sentence.text)};
      for (int choice : sentence.allowed)
        table.costs[choice] = 0;
      others.push_back(std::move(table));
    }
}

std::shared_ptr<ChoiceProblem> Writer::build() {
  readBans();
  addSentences();
  findTrees();
  function.walk<WalkOrder::PreOrder>([&](ShardableOpInterface op) {
    ShardingRule rule = op.getShardingRule();
    if (isChosen(op, rule))
      choosing(op, rule);
    else
      following(op, rule);
  });
  for (const Tree &t : trees)
    tree(t);
  gathers();
  memory();
  auto problem = std::make_shared<ChoiceProblem>();
  for (const SpaceVariable &variable : space.variables()) {
    problem->sizes.push_back(variable.size());
    problem->names.push_back(variable.name);
  }
  for (auto &[variable, costs] : singles)
    problem->tables.push_back({{variable}, std::move(costs), {}, ""});
  for (auto &[variable, list] : bytes)
    problem->tables.push_back({{variable}, std::vector<double>(list.size()), std::move(list), ""});
  for (auto &[two, costs] : pairs)
    problem->tables.push_back({{two.first, two.second}, std::move(costs), {}, ""});
  for (CostTable &table : others) {
    // A table may name a variable twice: a leaf that lives where the root does.
    problem->tables.push_back(std::move(table));
  }
  others.clear();
  return problem;
}

void Writer::read(const std::vector<int> &choice, SearchResult &result) {
  auto note = [&](Value v) {
    auto type = dyn_cast<NamedTensorType>(v.getType());
    if (!type)
      return;
    SpacePlace place = space.placeOf(v);
    place.ofShard = false;
    result.lives[v] =
        space.shardingOf(place, place.variable < 0 ? 0 : choice[place.variable], type);
  };
  for (BlockArgument arg : function.getArguments())
    note(arg);
  function.walk([&](Operation *op) {
    for (Value v : op->getResults())
      note(v);
    if (auto repeat = dyn_cast<RepeatOp>(op))
      for (BlockArgument arg : repeat.getBody().getArguments())
        note(arg);
    auto shardable = dyn_cast<ShardableOpInterface>(op);
    if (!shardable || op->getNumResults() == 0)
      return;
    if (auto it = variableOf.find(op); it != variableOf.end()) {
      result.factors[op] = space.variables()[it->second].factors[choice[it->second]];
      return;
    }
    SpacePlace place = space.placeOf(op->getResult(0));
    if (place.variable >= 0)
      result.factors[op] =
          factorsAtHome(shardable.getShardingRule(), space.shardingOf(place, choice[place.variable],
                                                                      tensorOf(op->getResult(0))));
  });
  for (size_t p = 0; p < flow.params.size(); ++p)
    result.shards.push_back(space.variables()[p].shards[choice[p]]);
}

/// What a choice says of where values live, in the plan's words.
std::vector<std::string> Writer::sentences(const SpaceVariable &variable, int choice) const {
  std::vector<std::string> lines;
  const Sharding &home = variable.homes[choice];
  auto withoutTime = [&](ArrayRef<int> atoms) {
    return SmallVector<int>(
        llvm::make_filter_range(atoms, [&](int a) { return !context.isInTime(a); }));
  };
  SmallVector<int> rest, added;
  for (int a = 0; a < static_cast<int>(context.getAtoms().size()); ++a)
    if (!home.uses(a) && !context.isInTime(a))
      rest.push_back(a);
  for (auto [d, atoms] : llvm::enumerate(home.dims))
    if (SmallVector<int> said = withoutTime(atoms); !said.empty())
      lines.push_back("shard " + variable.type.getNames()[d].str() + " by " + context.text(said));
  if (!rest.empty())
    lines.push_back("replicate over " + context.text(rest));
  if (variable.kind != SpaceVariable::Kind::Param)
    return lines;
  const ParamShards &shards = variable.shards[choice];
  for (auto [whole, shard] : llvm::zip_equal(home.dims, shards.shard.dims))
    for (int atom : shard)
      if (!llvm::is_contained(whole, atom))
        added.push_back(atom);
  lines.push_back("zero " + std::to_string(shards.level) +
                  (shards.level ? " over " + context.text(added) : ""));
  return lines;
}

std::vector<SearchVariable> Writer::variables() const {
  std::map<int, std::vector<std::string>> named;
  std::set<std::string> seen;
  function->walk([&](Operation *op) {
    for (Value v : op->getResults())
      if (auto name = dyn_cast<NameLoc>(v.getLoc()))
        if (SpacePlace place = space.placeOf(v);
            place.variable >= 0 && seen.insert(name.getName().str()).second)
          named[place.variable].push_back(name.getName().str());
  });
  std::vector<SearchVariable> list;
  for (auto [v, variable] : llvm::enumerate(space.variables())) {
    using Kind = SpaceVariable::Kind;
    if (variable.kind == Kind::Op || variable.kind == Kind::Pending)
      continue;
    SearchVariable &out = list.emplace_back();
    out.kind = variable.kind == Kind::Dims    ? SearchVariable::Kind::Dims
               : variable.kind == Kind::Param ? SearchVariable::Kind::Param
                                              : SearchVariable::Kind::Value;
    out.name = variable.name;
    out.place = variable.place ? locationText(*variable.place) : "";
    for (StringAttr name : variable.type.getNames())
      out.dims.push_back(name.str());
    out.variable = static_cast<int>(v);
    out.values = named[out.variable];
    for (int c = 0; c < variable.size(); ++c)
      out.choices.push_back(sentences(variable, c));
  }
  return list;
}

/// The decision, variable by variable, at the source lines.
void Writer::remark(const std::vector<int> &choice) const {
  for (auto [v, variable] : llvm::enumerate(space.variables()))
    if (variable.place && !sentences(variable, choice[v]).empty())
      emitRemark(*variable.place) << "auto: at " << variable.name << ": "
                                  << llvm::join(sentences(variable, choice[v]), "; ");
}

} // namespace

FailureOr<SearchResult> cleave::searchShardings(const ShardingContext &context,
                                                func::FuncOp function, const ParamFlow &flow) {
  auto module = function->getParentOfType<ModuleOp>();
  auto settings = module->getAttrOfType<DictionaryAttr>(kAutoAttr);
  FailureOr<std::shared_ptr<Prices>> prices = Prices::create(module, context);
  if (failed(prices))
    return failure();
  auto start = std::chrono::steady_clock::now();
  SearchResult result;
  Writer writer(context, function, flow, **prices);
  std::shared_ptr<ChoiceProblem> problem = writer.build();
  MinimizeOptions options;
  if (auto limit = settings ? settings.getAs<IntegerAttr>(kAutoMemory) : IntegerAttr())
    options.memoryLimit = static_cast<double>(limit.getInt());
  Result<Minimum> minimum = minimize(*problem, options);
  auto places = dyn_cast<FusedLoc>(module.getLoc()); // the model's, then the plan's
  Location place = places ? places.getLocations().back() : module.getLoc();
  if (!minimum) {
    // Once more, with the plan's sentences as constraints, to name those that conflict.
    if (settings)
      if (Result<Minimum> named = minimize(
              *Writer(context, function, flow, **prices, /*sentences=*/true).build(), options);
          !named)
        minimum = named.error();
    emitUserError(place) << minimum.error().message;
    return failure();
  }
  writer.read(minimum->choice, result);
  writer.remark(minimum->choice);
  emitRemark(place) << "auto: " << function.getSymName() << " takes "
                    << llvm::formatv("{0:f3}", minimum->cost * 1e3) << " ms by the search's prices"
                    << (minimum->exact()
                            ? ", the least"
                            : llvm::formatv(", at least {0:f3}", minimum->lowerBound * 1e3).str())
                    << "; " << problem->sizes.size() << " variables, width " << minimum->width;
  SearchReport &report = result.report;
  if (auto hidden = settings ? settings.getAs<IntegerAttr>(kAutoHidden) : IntegerAttr())
    report.hidden = hidden.getInt();
  report.function = function.getSymName().str();
  report.problem = std::move(problem);
  report.minimum = std::move(*minimum);
  report.variables = writer.variables();
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

ParamPins cleave::pinsOfParams(ModuleOp module, const ShardingContext &context) {
  ParamPins pins;
  Builder b(module.getContext());
  auto axesOf = [&](ArrayRef<int> atoms) {
    SmallVector<StringAttr> axes;
    for (int atom : atoms)
      axes.push_back(b.getStringAttr(context.text(atom)));
    return axes;
  };
  auto list = [&](ArrayRef<StringAttr> names) {
    return b.getArrayAttr(SmallVector<Attribute>(names.begin(), names.end()));
  };
  SmallVector<int> all;
  for (int a = 0; a < static_cast<int>(context.getAtoms().size()); ++a)
    if (!context.isInTime(a))
      all.push_back(a);
  for (auto function : module.getOps<func::FuncOp>())
    for (BlockArgument arg : function.getArguments()) {
      unsigned i = arg.getArgNumber();
      auto role = function.getArgAttrOfType<StringAttr>(i, kRole);
      auto path = function.getArgAttrOfType<StringAttr>(i, kName);
      auto lives = function.getArgAttrOfType<ShardingAttr>(i, kSharding);
      if (!role || role.getValue() != "param" || !path || !lives)
        continue;
      NamedTensorType type = tensorOf(arg);
      auto readAs = function.getArgAttrOfType<ShardingAttr>(i, kReadAs);
      Sharding home = context.fromAttr(readAs ? readAs : lives, type.getRank());
      Sharding shard = context.fromAttr(lives, type.getRank());
      SmallVector<Attribute> rules;
      SmallVector<int> added;
      for (auto [name, whole, part] : llvm::zip_equal(type.getNames(), home.dims, shard.dims)) {
        if (!whole.empty())
          rules.push_back(ShardRuleAttr::get(
              b.getContext(), {b.getArrayAttr({b.getArrayAttr({name})})}, axesOf(whole)));
        for (int atom : part)
          if (!llvm::is_contained(whole, atom))
            added.push_back(atom);
      }
      pins[path.getValue()] = {
          b.getNamedAttr(kPin, b.getArrayAttr(rules)), b.getNamedAttr(kPinAxes, list(axesOf(all))),
          b.getNamedAttr(kPinZero, b.getArrayAttr({b.getI64IntegerAttr(readAs ? 3 : 0),
                                                   list(axesOf(added))}))};
    }
  return pins;
}

void cleave::pinParams(ModuleOp module, const ParamPins &pins) {
  for (auto function : module.getOps<func::FuncOp>())
    for (unsigned i = 0; i < function.getNumArguments(); ++i)
      if (auto path = function.getArgAttrOfType<StringAttr>(i, kName))
        if (auto it = pins.find(path.getValue()); it != pins.end())
          for (NamedAttribute attr : it->second)
            function.setArgAttr(i, attr.getName(), attr.getValue());
}
