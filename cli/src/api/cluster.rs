//! Routes about the cluster: nodes, keys, tokens, namespaces, news.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use odeon_client::types::{
    CheckedCluster, CheckedNode, Drain, Key, Namespace, NamespaceUse, NewKey, NewToken, News, Node,
    Refuse, Status, Token, Voters,
};
use odeon_cluster::access::{KeyRole, check_name};
use odeon_cluster::admit::TokenError;
use odeon_cluster::catalog::WriteError;
use odeon_cluster::doctor;
use odeon_cluster::fact::{Fact, NamespaceQuota, RefusalKind};
use odeon_cluster::tables::Tables;
use odeon_cluster::unix::Unix;

use super::access::{Admin, Caller, Viewer};
use super::audit::Made;
use super::extract::{Path, Sent};
use super::key::new_key;
use super::problem::No;
use super::{Api, dto, recovery};
use crate::self_check;

/// The answer of a handler.
pub(super) type Answer<T> = Result<Json<T>, No>;
/// The answer of a handler that has made something, with the name of that.
pub(super) type Making<T> = Result<(Extension<Made>, Json<T>), No>;
/// The answer of a handler that has nothing to say.
pub(super) type Done = Result<StatusCode, No>;

/// Longest validity of a join token.
const TOKEN_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// Most nodes that may join with one token.
const TOKEN_USES_MAX: u32 = 10_000;
/// The time that a node may be silent that is taken to be there: longer than links beat.
const SILENCE: Duration = Duration::from_secs(3);
/// News in one answer.
const NEWS_MAX: usize = 500;

impl Api {
    /// Looks at the tables.
    pub(super) fn read<T>(&self, look: impl FnOnce(&Tables) -> T) -> Result<T, No> {
        let read = self.daemon.catalog().read(look);
        read.ok_or_else(|| No::unavailable(self.daemon.catalog().why_unread()))
    }

    /// The nodes. Without a majority nobody writes down who is gone: then this node says whom it hears.
    fn nodes(&self, tables: &Tables) -> Vec<Node> {
        let nodes = dto::nodes(tables);
        let led = self.daemon.catalog().leader().is_some();
        let links = self.daemon.system().admin().links().into_iter();
        let links: BTreeMap<String, Duration> = links
            .filter(|link| !link.is_worker)
            .map(|link| (link.node, link.silent_for))
            .collect();
        let nodes = nodes.into_iter().map(|mut node| {
            let is_up = ["up", "drained", "refused"].contains(&node.state.as_str());
            // One that has just come up may not be linked from here yet.
            let silent_for = match links.get(&node.name) {
                Some(silent_for) => *silent_for,
                None => Duration::from_millis(tables.now.0.saturating_sub(node.since_ms)),
            };
            if !is_up || node.name == self.daemon.name() || silent_for < SILENCE {
                return node;
            }
            if led {
                node.state = "silent".to_owned();
                node.why = Some(match links.contains_key(&node.name) {
                    true => format!("has said nothing for {} s", silent_for.as_secs()),
                    false => format!("has no link to `{}`", self.daemon.name()),
                });
            } else {
                node.state = "unknown".to_owned();
            }
            node
        });
        nodes.collect()
    }
}

/// The release of the daemon.
#[utoipa::path(get, path = "/api/v1/version", responses((status = 200, body = String)))]
pub(super) async fn version() -> Json<String> {
    Json(env!("CARGO_PKG_VERSION").to_owned())
}

/// The cluster at the moment.
#[utoipa::path(get, path = "/api/v1/status", responses((status = 200, body = Status)))]
pub(super) async fn status(State(api): State<Arc<Api>>, _: Viewer) -> Answer<Status> {
    let catalog = api.daemon.catalog();
    let (leader, voters) = (catalog.leader(), catalog.voters());
    let status = api.read(|tables| {
        let mut jobs = BTreeMap::new();
        for job in tables.jobs.values() {
            *jobs.entry(job.word().to_owned()).or_insert(0) += 1;
        }
        Status {
            release: env!("CARGO_PKG_VERSION").to_owned(),
            node: api.daemon.name().to_owned(),
            majority: leader.is_some(),
            leader,
            voters,
            voters_wanted: tables.voters_wanted.max(1),
            nodes: api.nodes(tables),
            jobs,
            // The catalog's own stands still while nobody writes to it.
            now_ms: tables.now.0.max(Unix::now().0),
        }
    })?;
    Ok(Json(status))
}

/// The nodes.
#[utoipa::path(get, path = "/api/v1/nodes", responses((status = 200, body = Vec<Node>)))]
pub(super) async fn nodes(State(api): State<Arc<Api>>, _: Viewer) -> Answer<Vec<Node>> {
    Ok(Json(api.read(|tables| api.nodes(tables))?))
}

/// The checks of all nodes' machines, made now: what would be in the way of jobs, and what to change.
#[utoipa::path(get, path = "/api/v1/machines", responses((status = 200, body = CheckedCluster)))]
pub(super) async fn machines(State(api): State<Arc<Api>>, _: Viewer) -> Answer<CheckedCluster> {
    let (mut nodes, mut looked) = (vec![], vec![]);
    for (node, facts) in api.daemon.machines().await {
        let (checks, unreached) = match &facts {
            Ok(facts) => (doctor::examine(facts), None),
            Err(why) => (vec![], Some(why.clone())),
        };
        nodes.push(CheckedNode {
            node: node.clone(),
            checks: checks.into_iter().map(dto::check).collect(),
            unreached,
            let_back: false,
        });
        looked.extend(facts.ok().map(|facts| (node, facts)));
    }
    let together = doctor::compare(&looked).into_iter();
    Ok(Json(CheckedCluster {
        nodes,
        together: together.map(dto::check).collect(),
    }))
}

/// Has a node get no new jobs, or get some again.
#[utoipa::path(post, path = "/api/v1/nodes/{node}/drain", params(("node" = String, Path, description = "Which node.")), request_body = Drain,
    responses((status = 204)))]
pub(super) async fn drain(
    State(api): State<Arc<Api>>,
    Admin(caller): Admin,
    Path(node): Path<String>,
    Sent(Drain { drained }): Sent<Drain>,
) -> Done {
    let by = caller.name;
    let fact = Fact::NodeDrained { node, drained, by };
    api.daemon.catalog().write_for(fact).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Has nothing placed on a node from now on, or lets it have work again. What runs there goes on.
#[utoipa::path(post, path = "/api/v1/nodes/{node}/refuse", params(("node" = String, Path, description = "Which node.")), request_body = Refuse,
    responses((status = 204)))]
pub(super) async fn refuse(
    State(api): State<Arc<Api>>,
    Admin(caller): Admin,
    Path(node): Path<String>,
    Sent(Refuse { refused, why }): Sent<Refuse>,
) -> Done {
    let by = caller.name;
    if refused {
        let fact = Fact::NodeRefused { node, why, by };
        api.daemon.catalog().write_for(fact).await?;
        return Ok(StatusCode::NO_CONTENT);
    }
    let fact = Fact::NodeLetBack {
        node: node.clone(),
        why: why.clone(),
        by: by.clone(),
        passed: false,
        of: None,
    };
    let not_refused = match api.daemon.catalog().write_for(fact).await {
        Ok(_) => None,
        Err(WriteError::Refused(refusal)) if refusal.kind == RefusalKind::Conflict => Some(refusal),
        Err(error) => return Err(error.into()),
    };
    // A node that is not refused may be avoided by a run still.
    let runs = recovery::let_back(&api, &node, &by, &why).await?;
    match not_refused {
        Some(refusal) if runs == 0 => Err(WriteError::Refused(refusal).into()),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

/// Checks a node's machine and its arithmetic now. One that is refused and passes may get work again.
#[utoipa::path(post, path = "/api/v1/nodes/{node}/check", params(("node" = String, Path, description = "Which node.")), responses((status = 200, body = CheckedNode)))]
pub(super) async fn check(
    State(api): State<Arc<Api>>,
    Admin(caller): Admin,
    Path(node): Path<String>,
) -> Answer<CheckedNode> {
    let row = api.read(|tables| tables.nodes.get(&node).cloned())?;
    let row = row.ok_or_else(|| No::unknown(format!("there is no node `{node}`")))?;
    let checked = self_check::check_node(&api.daemon, &node).await;
    let mut let_back = false;
    let (checks, unreached) = match checked {
        Ok(checks) => {
            let by = format!("a check for {}", caller.name);
            let of = row.refused.as_ref().map(|ban| ban.number);
            let fact = self_check::verdict(&node, &checks, &by, of);
            let passes = matches!(fact, Fact::NodeLetBack { .. });
            // Of one that is trusted and passes there is nothing to note.
            if row.refused.is_some() || !passes {
                api.daemon.catalog().write_for(fact).await?;
                let_back = passes;
            }
            (checks, None)
        }
        Err(why) => (vec![], Some(why)),
    };
    Ok(Json(CheckedNode {
        node,
        checks: checks.into_iter().map(dto::check).collect(),
        unreached,
        let_back,
    }))
}

/// Has a node become the program that lies where its own did, while what it runs goes on. The answer
/// comes when nothing is in the way; the node is another program a moment later.
#[utoipa::path(post, path = "/api/v1/nodes/{node}/upgrade", params(("node" = String, Path, description = "Which node.")), responses((status = 204)))]
pub(super) async fn upgrade(
    State(api): State<Arc<Api>>,
    Admin(_): Admin,
    Path(node): Path<String>,
) -> Done {
    if !api.read(|tables| tables.nodes.contains_key(&node))? {
        return Err(No::unknown(format!("there is no node `{node}`")));
    }
    let upgraded = api.daemon.upgrade_node(&node).await;
    upgraded.map_err(No::conflict)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Forgets a node that is gone.
#[utoipa::path(delete, path = "/api/v1/nodes/{node}", params(("node" = String, Path, description = "Which node.")), responses((status = 204)))]
pub(super) async fn forget(
    State(api): State<Arc<Api>>,
    Admin(_): Admin,
    Path(node): Path<String>,
) -> Done {
    let fact = Fact::NodeForgotten { node };
    api.daemon.catalog().write_for(fact).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes a join token.
#[utoipa::path(post, path = "/api/v1/tokens", request_body = NewToken,
    responses((status = 200, body = Token)))]
pub(super) async fn make_token(
    State(api): State<Arc<Api>>,
    Admin(caller): Admin,
    Sent(wanted): Sent<NewToken>,
) -> Making<Token> {
    let valid = Duration::from_secs(wanted.valid_s);
    let what = format!("token for {} nodes, for {} s", wanted.uses, wanted.valid_s);
    if !(1..=TOKEN_USES_MAX).contains(&wanted.uses) {
        let why = format!(
            "a token is for 1 to {TOKEN_USES_MAX} nodes, not {}",
            wanted.uses
        );
        return Err(No::invalid(why));
    }
    if valid.is_zero() || valid > TOKEN_MAX {
        let most = TOKEN_MAX.as_secs();
        let why = format!("a token is good for 1 to {most} s, not {}", wanted.valid_s);
        return Err(No::invalid(why));
    }
    let made = api.daemon.make_token(wanted.uses, valid, caller.name).await;
    let (token, until) = made.map_err(|error| match error {
        TokenError::Catalog(error) => error.into(),
        error => No::conflict(error),
    })?;
    let token = Token {
        token,
        address: api.daemon.address().to_owned(),
        until_ms: until.0,
    };
    Ok((Extension(Made(what)), Json(token)))
}

/// The keys, without what is secret.
#[utoipa::path(get, path = "/api/v1/keys", responses((status = 200, body = Vec<Key>)))]
pub(super) async fn keys(State(api): State<Arc<Api>>, Admin(_): Admin) -> Answer<Vec<Key>> {
    let keys = api.read(|tables| {
        let keys = tables.keys.values().map(|row| Key {
            name: row.name.clone(),
            role: row.role.to_string(),
            key: None,
            since_ms: row.since.0,
        });
        keys.collect()
    })?;
    Ok(Json(keys))
}

/// The key that asks.
#[utoipa::path(get, path = "/api/v1/key", responses((status = 200, body = Key)))]
pub(super) async fn own_key(State(api): State<Arc<Api>>, caller: Caller) -> Answer<Key> {
    let row = api.read(|tables| {
        let mut keys = tables.keys.values();
        keys.find(|row| row.name == caller.name).cloned()
    })?;
    let row = row.ok_or_else(|| No::unauthorized("this key was revoked"))?;
    Ok(Json(Key {
        name: row.name,
        role: row.role.to_string(),
        key: None,
        since_ms: row.since.0,
    }))
}

/// Makes a key. Its secret is in the answer and nowhere else.
#[utoipa::path(post, path = "/api/v1/keys", request_body = NewKey,
    responses((status = 200, body = Key)))]
pub(super) async fn make_key(
    State(api): State<Arc<Api>>,
    Admin(caller): Admin,
    Sent(NewKey { name, role }): Sent<NewKey>,
) -> Making<Key> {
    let parsed: KeyRole = role.parse().map_err(No::invalid)?;
    check_name("key", &name).map_err(No::invalid)?;
    let (secret, id) = new_key();
    let fact = Fact::KeyMade {
        id,
        name: name.clone(),
        role: parsed,
        by: caller.name,
    };
    api.daemon.catalog().write_for(fact).await?;
    let made = Made(format!("key `{name}` ({role})"));
    let key = Key {
        name,
        role,
        key: Some(secret),
        since_ms: Unix::now().0,
    };
    Ok((Extension(made), Json(key)))
}

/// Revokes a key.
#[utoipa::path(delete, path = "/api/v1/keys/{name}", params(("name" = String, Path, description = "Which, by its name.")), responses((status = 204)))]
pub(super) async fn revoke_key(
    State(api): State<Arc<Api>>,
    Admin(caller): Admin,
    Path(name): Path<String>,
) -> Done {
    if name == caller.name {
        let why = "this is the key that asks: revoke it with another, so that one is left";
        return Err(No::conflict(why));
    }
    let by = caller.name;
    api.daemon
        .catalog()
        .write_for(Fact::KeyRevoked { name, by })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sets how many nodes shall vote.
#[utoipa::path(put, path = "/api/v1/voters", request_body = Voters, responses((status = 204)))]
pub(super) async fn set_voters(
    State(api): State<Arc<Api>>,
    Admin(caller): Admin,
    Sent(Voters { count }): Sent<Voters>,
) -> Done {
    let by = caller.name;
    let fact = Fact::VotersSet { count, by };
    api.daemon.catalog().write_for(fact).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sets the bounds of a namespace.
#[utoipa::path(put, path = "/api/v1/namespaces/{name}", params(("name" = String, Path, description = "Which, by its name.")), request_body = Namespace,
    responses((status = 204)))]
pub(super) async fn set_namespace(
    State(api): State<Arc<Api>>,
    Admin(caller): Admin,
    Path(name): Path<String>,
    Sent(bounds): Sent<Namespace>,
) -> Done {
    check_name("namespace", &name).map_err(No::invalid)?;
    let quota = NamespaceQuota {
        running_max: bounds.running_max,
        gpu_milli: bounds.gpu_milli,
        cpu_milli: bounds.cpu_milli,
        memory_bytes: bounds.memory_bytes,
    };
    let fact = Fact::NamespaceSet {
        name,
        quota: (quota != NamespaceQuota::default()).then_some(quota),
        by: caller.name,
    };
    api.daemon.catalog().write_for(fact).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The namespaces that have bounds or jobs.
#[utoipa::path(get, path = "/api/v1/namespaces", responses((status = 200, body = Vec<NamespaceUse>)))]
pub(super) async fn namespaces(
    State(api): State<Arc<Api>>,
    _: Viewer,
) -> Answer<Vec<NamespaceUse>> {
    let uses = api.read(|tables| {
        let mut uses: BTreeMap<String, NamespaceUse> = BTreeMap::new();
        let unused = |name: &String| NamespaceUse {
            name: name.clone(),
            bounds: Namespace::default(),
            running: 0,
            waiting: 0,
        };
        for (name, quota) in &tables.namespaces {
            let known = uses.entry(name.clone()).or_insert_with(|| unused(name));
            known.bounds = Namespace {
                running_max: quota.running_max,
                gpu_milli: quota.gpu_milli,
                cpu_milli: quota.cpu_milli,
                memory_bytes: quota.memory_bytes,
            };
        }
        for job in tables.living_jobs() {
            let name = &job.spec.namespace;
            let known = uses.entry(name.clone()).or_insert_with(|| unused(name));
            match job.attempt() {
                Some(_) => known.running += 1,
                None => known.waiting += 1,
            }
        }
        uses.into_values().collect()
    })?;
    Ok(Json(uses))
}

/// The last events, oldest first.
#[utoipa::path(get, path = "/api/v1/news", responses((status = 200, body = Vec<News>)))]
pub(super) async fn news(State(api): State<Arc<Api>>, _: Viewer) -> Answer<Vec<News>> {
    let news = api.read(|tables| {
        let skip = tables.news.len().saturating_sub(NEWS_MAX);
        let last = tables.news.iter().skip(skip).map(|news| News {
            at_ms: news.at.0,
            about: news.about.clone(),
            what: news.what.clone(),
        });
        last.collect()
    })?;
    Ok(Json(news))
}
