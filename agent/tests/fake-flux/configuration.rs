//! The broker's command line and broker.toml.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

/// The configuration of a broker.
pub struct Broker {
    pub rank: u32,
    pub hosts: Vec<String>,
    pub port: u16,
    /// The address to listen at. None: all addresses.
    pub bind: Option<String>,
    /// Names are resolved to IPv6 addresses if true, else to IPv4.
    pub ipv6: bool,
    /// The lead's address, such as `tcp://%h:%p`: `%h` is the lead's host name, `%p` the port.
    pub connect: String,
    pub quorum: usize,
    pub attributes: BTreeMap<String, String>,
    /// Names of the queues. The default queue has a star.
    pub queues: Vec<String>,
    /// The text of R, if the configuration names its file.
    pub resources: Option<String>,
    pub program: Vec<String>,
}

/// Reads the configuration from the arguments of `flux broker`.
pub fn read(words: &[&str]) -> Result<Broker, String> {
    let (mut config, mut attributes, mut at) = (None, BTreeMap::new(), 0);
    while let Some(word) = words.get(at) {
        if let Some((name, value)) = word
            .strip_prefix("-S")
            .map(|set| set.split_once('=').unwrap_or((set, "1")))
        {
            attributes.insert(name.to_owned(), value.to_owned());
        } else if ["--config", "--config-path", "-c"].contains(word) {
            at += 1;
            config = words.get(at);
        } else if !word.starts_with('-') {
            break;
        }
        at += 1;
    }
    let program = words[at.min(words.len())..]
        .iter()
        .map(|word| (*word).to_owned())
        .collect();
    let table = tables(config.ok_or("no configuration")?)?;
    let bootstrap = table.get("bootstrap").ok_or("no [bootstrap]")?;
    let text_of = |name: &str| {
        bootstrap
            .get(name)
            .and_then(toml::Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (hosts, connect) = hosts(bootstrap)?;
    let resources = table
        .get("resource")
        .and_then(|table| table.get("path"))
        .and_then(toml::Value::as_str);
    let resources = resources
        .map(std::fs::read_to_string)
        .transpose()
        .map_err(|error| format!("resource: {error}"))?;
    let own_hostname = || {
        nix::unistd::gethostname()
            .ok()
            .and_then(|name| name.into_string().ok())
    };
    let own = attributes
        .get("hostname")
        .cloned()
        .or_else(own_hostname)
        .unwrap_or_default();
    let rank = hosts
        .iter()
        .position(|host| *host == own)
        .ok_or(format!("{own} is not in the hostlist"))?;
    if hosts.len() > 1 {
        check_certificate(&text_of("curve_cert"))?;
    }
    let quorum = attributes
        .get("broker.quorum")
        .and_then(|quorum| quorum.parse().ok())
        .unwrap_or(hosts.len());
    let bind = text_of("default_bind");
    let bind = bind
        .trim_start_matches("tcp://")
        .rsplit_once(':')
        .map_or("*", |(address, _)| address);
    let bind = bind.trim_matches(['[', ']']).to_owned();
    // As in libzmq, whose sockets have one address family unless configured otherwise.
    let ipv6 = bootstrap
        .get("enable_ipv6")
        .and_then(toml::Value::as_bool)
        .unwrap_or(false);
    if bind.contains(':') && !ipv6 {
        return Err(format!("bind tcp://[{bind}]: No such device"));
    }
    let port = bootstrap
        .get("default_port")
        .and_then(toml::Value::as_integer)
        .unwrap_or(8050);
    Ok(Broker {
        rank: u32::try_from(rank).map_err(|error| error.to_string())?,
        hosts,
        port: u16::try_from(port).map_err(|error| error.to_string())?,
        // A user's own configuration may name an interface instead. Then the broker listens at all addresses.
        bind: Some(bind).filter(|bind| bind.parse::<std::net::IpAddr>().is_ok()),
        ipv6,
        connect: connect.unwrap_or_else(|| text_of("default_connect")),
        quorum,
        attributes,
        queues: queues(&table),
        resources,
        program,
    })
}

/// All TOML files of the folder, sorted by name. Tables of later files replace those of earlier ones.
fn tables(folder: &str) -> Result<toml::Table, String> {
    let failed = |path: &std::path::Path, why: String| format!("{}: {why}", path.display());
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{folder}: {error}"))?;
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    let mut all = toml::Table::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).map_err(|error| failed(&path, error.to_string()))?;
        all.extend(toml::from_str::<toml::Table>(&text).map_err(|error| failed(&path, error.to_string()))?);
    }
    Ok(all)
}

/// All hosts, each once, and the address of the lead if an entry has one.
fn hosts(bootstrap: &toml::Value) -> Result<(Vec<String>, Option<String>), String> {
    let (mut hosts, mut connect) = (Vec::new(), None);
    for entry in bootstrap
        .get("hosts")
        .and_then(toml::Value::as_array)
        .ok_or("no hosts")?
    {
        let list = entry
            .get("host")
            .and_then(toml::Value::as_str)
            .ok_or("a host without a name")?;
        // An entry may repeat a host to give its address.
        for host in flux_shared::hostlist::expand(list)? {
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        connect = entry
            .get("connect")
            .and_then(toml::Value::as_str)
            .map(str::to_owned)
            .or(connect);
    }
    Ok((hosts, connect))
}

fn check_certificate(path: &str) -> Result<(), String> {
    let data = std::fs::metadata(path).map_err(|error| format!("{path}: {error}"))?;
    if data.permissions().mode() & 0o077 != 0 {
        return Err(format!(
            "Error loading certificate: {path}: readable by group/other"
        ));
    }
    std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    Ok(())
}

/// The names of the queues. The default queue has a star.
fn queues(table: &toml::Table) -> Vec<String> {
    let defaults = ["jobspec", "defaults", "system", "queue"];
    let default_queue = table
        .get("policy")
        .cloned()
        .and_then(|policy| defaults.iter().try_fold(policy, |at, name| at.get(name).cloned()));
    let default_queue = default_queue.as_ref().and_then(toml::Value::as_str);
    let queues = table
        .get("queues")
        .and_then(toml::Value::as_table)
        .into_iter()
        .flat_map(toml::Table::keys);
    queues
        .map(|name| {
            if Some(name.as_str()) == default_queue {
                format!("{name}*")
            } else {
                name.clone()
            }
        })
        .collect()
}
