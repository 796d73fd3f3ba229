//! The layers: which crate of the workspace may depend on which, read from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Problem;

/// What each shipped crate may name of the workspace outside its tests. Crates that are not here are tools and
/// tests: they may name anything, and nothing that ships may name them.
const MAY_NAME: &[(&str, &[&str])] = &[
    ("kernels-ptx", &[]),
    ("cpu-ops", &[]),
    ("gpu-driver", &["kernels-ptx"]),
    ("trainer", &["cpu-ops", "gpu-driver", "kernels-ptx"]),
];

/// Crates that must not have these in their tree, at any depth.
const WITHOUT: &[(&str, &[&str])] =
    &[("cpu-ops", &["cudarc", "gpu-driver", "kernels-ptx"]), ("kernels-ptx", &["cudarc"])];

/// Compares the metadata's graph with the two tables.
pub fn check(metadata: &Value) -> Vec<Problem> {
    let graph = Graph::read(metadata);
    let mut problems = Vec::new();
    for (name, allowed) in MAY_NAME {
        let Some(package) = graph.members.get(*name) else {
            problems.push(problem(name, "is not a member of the workspace: nothing was checked".to_owned()));
            continue;
        };
        for dependency in graph.normal(package) {
            let dependency = graph.name(dependency);
            if graph.members.contains_key(dependency) && !allowed.contains(&dependency) {
                problems.push(problem(name, format!("must not depend on {dependency}")));
            }
        }
    }
    for (name, banned) in WITHOUT {
        let Some(package) = graph.members.get(*name) else { continue };
        for dependency in graph.reachable(package) {
            if banned.contains(&graph.name(dependency)) {
                problems.push(problem(name, format!("has {} in its tree", graph.name(dependency))));
            }
        }
    }
    problems
}

fn problem(package: &str, message: String) -> Problem {
    Problem { path: format!("crates/{package}/Cargo.toml"), line: 0, message }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The resolved graph, with dependencies of build scripts and without those of tests.
struct Graph<'a> {
    /// From a member's name to its id.
    members: BTreeMap<&'a str, &'a str>,
    names: BTreeMap<&'a str, &'a str>,
    edges: BTreeMap<&'a str, Vec<&'a str>>,
}

impl<'a> Graph<'a> {
    fn read(metadata: &'a Value) -> Self {
        let names: BTreeMap<_, _> = list(&metadata["packages"])
            .iter()
            .map(|package| (text(&package["id"]), text(&package["name"])))
            .collect();
        let members = list(&metadata["workspace_members"])
            .iter()
            .map(|id| (names.get(text(id)).copied().unwrap_or_default(), text(id)))
            .collect();
        let edges = list(&metadata["resolve"]["nodes"])
            .iter()
            .map(|node| {
                let ships = |dependency: &&Value| {
                    list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"] != "dev")
                };
                let targets =
                    list(&node["deps"]).iter().filter(ships).map(|dependency| text(&dependency["pkg"]));
                (text(&node["id"]), targets.collect())
            })
            .collect();
        Self { members, names, edges }
    }

    fn name(&self, id: &str) -> &'a str {
        self.names.get(id).copied().unwrap_or_default()
    }

    fn normal(&self, id: &str) -> impl Iterator<Item = &'a str> + '_ {
        self.edges.get(id).into_iter().flatten().copied()
    }

    fn reachable(&self, from: &'a str) -> BTreeSet<&'a str> {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(id) = open.pop() {
            open.extend(self.normal(id).filter(|next| seen.insert(*next)));
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A workspace of the four crates, an emulator and two foreign crates, with these edges and kinds.
    fn metadata(edges: &[(&str, &str, Value)]) -> Value {
        let members = ["kernels-ptx", "cpu-ops", "gpu-driver", "trainer", "gpu-emulator"];
        let all: Vec<_> = members.iter().chain(&["cudarc", "helper"]).collect();
        let nodes: Vec<_> = all
            .iter()
            .map(|id| {
                let deps: Vec<_> = edges
                    .iter()
                    .filter(|(from, _, _)| *from == **id)
                    .map(|(_, to, kind)| json!({ "pkg": to, "dep_kinds": [{ "kind": kind }] }))
                    .collect();
                json!({ "id": id, "deps": deps })
            })
            .collect();
        let packages: Vec<_> = all.iter().map(|id| json!({ "id": id, "name": id })).collect();
        json!({ "packages": packages, "workspace_members": members, "resolve": { "nodes": nodes } })
    }

    #[test]
    fn the_intended_layers_pass() {
        let edges = [
            ("trainer", "cpu-ops", Value::Null),
            ("trainer", "gpu-driver", Value::Null),
            ("gpu-driver", "cudarc", Value::Null),
            ("gpu-driver", "kernels-ptx", Value::Null),
            ("gpu-driver", "gpu-emulator", json!("dev")),
        ];
        assert_eq!(check(&metadata(&edges)), []);
    }

    #[test]
    fn a_dependency_on_a_higher_layer_is_found() {
        for edge in [("cpu-ops", "trainer"), ("gpu-driver", "cpu-ops"), ("trainer", "gpu-emulator")] {
            let problems = check(&metadata(&[(edge.0, edge.1, Value::Null)]));
            assert_eq!(problems.len(), 1, "{edge:?}: {problems:?}");
            assert!(problems[0].message.contains(edge.1));
        }
    }

    #[test]
    fn cuda_below_cpu_ops_is_found_at_any_depth() {
        let edges = [("cpu-ops", "helper", Value::Null), ("helper", "cudarc", json!("build"))];
        let problems = check(&metadata(&edges));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].message, "has cudarc in its tree");
    }

    #[test]
    fn metadata_without_the_crates_fails() {
        assert_eq!(check(&json!({})).len(), MAY_NAME.len());
    }
}
