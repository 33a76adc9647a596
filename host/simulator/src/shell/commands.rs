//! The commands of the small shell.

use std::time::Duration;

use super::{Finished, Shell};

impl Shell {
    pub(super) async fn execute(&mut self, argv: &[String], input: &[u8]) -> Finished {
        let Some((name, arguments)) = argv.split_first() else {
            return Finished::default();
        };
        // `sudo x` and `exec x` are `x` here: there is one user and no process.
        if matches!(name.as_str(), "sudo" | "exec" | "command" | "env")
            && !arguments.is_empty()
            && !arguments.iter().any(|a| a.starts_with('-') || a.contains('='))
        {
            return Box::pin(self.execute(arguments, input)).await;
        }
        if let Some(finished) = self.programs.clone().run(argv).await {
            return finished;
        }
        match name.rsplit('/').next().unwrap_or(name) {
            "true" | ":" | "sync" | "chown" | "set" => Finished::default(),
            "false" => Finished::status(1),
            "exit" => {
                let status = arguments.first().and_then(|n| n.parse().ok()).unwrap_or(self.last);
                self.exited = Some(status);
                Finished::status(status)
            }
            "echo" => echo(arguments),
            "printf" => printf(arguments),
            "sleep" => sleep(arguments).await,
            "hostname" => self.hostname(arguments),
            "export" => self.export(arguments),
            "cd" => self.change_directory(arguments),
            "cat" => self.cat(arguments, input),
            "touch" => self.each(arguments, |shell, path| shell.files.write(path, b"", true)),
            "mkdir" => self.make_directory(arguments),
            "rm" => self.remove(arguments),
            "chmod" => self.change_mode(arguments),
            "cp" => self.copy(arguments, false),
            "mv" => self.copy(arguments, true),
            "ls" => self.list(arguments),
            "grep" => self.grep(arguments, input),
            "test" => self.test(arguments),
            "[" => match arguments.split_last() {
                Some((last, inner)) if last == "]" => self.test(inner),
                _ => Finished::fail(2, "sh: [: `]` is missing"),
            },
            "dirname" => Finished::out(arguments.first().map_or(String::new(), |path| {
                let parent = path.rsplit_once('/').map_or(".", |(parent, _)| parent);
                format!("{}\n", if parent.is_empty() { "/" } else { parent })
            })),
            "basename" => Finished::out(
                arguments
                    .first()
                    .map_or(String::new(), |path| format!("{}\n", path.rsplit('/').next().unwrap_or(path))),
            ),
            "sh" | "bash" | "source" | "." => self.shell(arguments, input).await,
            _ if name.contains('/') && self.files.exists(&self.path(name)) => self.script_file(name, input).await,
            _ => Finished {
                err: format!("warning: {name}: no such program on a simulated machine, taken as done\n").into_bytes(),
                ..Finished::default()
            },
        }
    }

    async fn shell(&mut self, arguments: &[String], input: &[u8]) -> Finished {
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            if word.starts_with('-') {
                if word.contains('c') {
                    let script = words.next().cloned().unwrap_or_default();
                    let finished = self.script(&script, input).await;
                    self.exited = None;
                    return finished;
                }
                continue;
            }
            return self.script_file(word, input).await;
        }
        let script = String::from_utf8_lossy(input).into_owned();
        let finished = self.script(&script, &[]).await;
        self.exited = None;
        finished
    }

    async fn script_file(&mut self, path: &str, input: &[u8]) -> Finished {
        match self.files.read(&self.path(path)) {
            Err(error) => Finished::fail(127, format!("sh: {error}")),
            Ok(content) => match String::from_utf8(content) {
                Err(_) => Finished {
                    err: format!("warning: {path} is no script and is taken as done\n").into_bytes(),
                    ..Finished::default()
                },
                Ok(script) => {
                    let finished = self.script(&script, input).await;
                    self.exited = None;
                    finished
                }
            },
        }
    }

    fn hostname(&mut self, arguments: &[String]) -> Finished {
        match arguments.iter().find(|a| !a.starts_with('-')) {
            Some(name) => {
                self.variables.insert("HOSTNAME".into(), name.clone());
                match self.files.write("/etc/hostname", format!("{name}\n").as_bytes(), false) {
                    Ok(()) => Finished::default(),
                    Err(error) => Finished::fail(1, format!("hostname: {error}")),
                }
            }
            None => Finished::out(format!("{}\n", self.variable("HOSTNAME"))),
        }
    }

    fn export(&mut self, arguments: &[String]) -> Finished {
        for argument in arguments {
            if let Some((name, value)) = argument.split_once('=') {
                self.variables.insert(name.to_owned(), value.to_owned());
            }
        }
        Finished::default()
    }

    fn change_directory(&mut self, arguments: &[String]) -> Finished {
        let path = crate::files::normal(&self.path(arguments.first().map_or("/root", String::as_str)));
        if !self.files.is_directory(&path) {
            return Finished::fail(1, format!("sh: cd: {path}: no such directory"));
        }
        self.directory = path;
        Finished::default()
    }

    fn cat(&self, arguments: &[String], input: &[u8]) -> Finished {
        if arguments.is_empty() {
            return Finished::out(input);
        }
        let mut finished = Finished::default();
        for path in arguments {
            match self.files.read(&self.path(path)) {
                Ok(content) => finished.out.extend(content),
                Err(error) => {
                    finished.err.extend(format!("cat: {error}\n").bytes());
                    finished.status = 1;
                }
            }
        }
        finished
    }

    /// Does the same with every path that is no option.
    fn each(&self, arguments: &[String], act: impl Fn(&Self, &str) -> std::io::Result<()>) -> Finished {
        let mut finished = Finished::default();
        for path in arguments.iter().filter(|a| !a.starts_with('-')) {
            if let Err(error) = act(self, &self.path(path)) {
                finished.err.extend(format!("{error}\n").bytes());
                finished.status = 1;
            }
        }
        finished
    }

    fn make_directory(&self, arguments: &[String]) -> Finished {
        let parents = arguments
            .iter()
            .any(|a| a == "--parents" || (a.starts_with('-') && !a.starts_with("--") && a.contains('p')));
        let mut skip_mode = false;
        let paths: Vec<String> = arguments
            .iter()
            .filter(|argument| {
                let value_of_mode = std::mem::replace(&mut skip_mode, argument.as_str() == "-m");
                !value_of_mode
            })
            .cloned()
            .collect();
        self.each(&paths, |shell, path| {
            let path = crate::files::normal(path);
            if !parents {
                let parent = path.rsplit_once('/').map_or("/", |(p, _)| if p.is_empty() { "/" } else { p });
                if shell.files.exists(&path) {
                    return Err(std::io::Error::other(format!("mkdir: {path}: exists already")));
                }
                if !shell.files.is_directory(parent) {
                    return Err(std::io::Error::other(format!("mkdir: {path}: no such directory")));
                }
            }
            shell.files.make_directory(&path)
        })
    }

    fn remove(&self, arguments: &[String]) -> Finished {
        let has = |c: char| arguments.iter().any(|a| a.starts_with('-') && a.contains(c));
        let (recursive, force) = (has('r') || has('R'), has('f'));
        self.each(arguments, |shell, path| {
            if !recursive && shell.files.is_directory(path) {
                return Err(std::io::Error::other(format!("rm: {path}: is a directory")));
            }
            match shell.files.remove(path) {
                Err(error) if force && error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                other => other,
            }
        })
    }

    fn change_mode(&self, arguments: &[String]) -> Finished {
        let mut words = arguments.iter().filter(|a| !a.starts_with('-'));
        // Symbolic modes (`u+x`) change nothing that this shell looks at.
        let mode = words.next().and_then(|mode| u32::from_str_radix(mode, 8).ok());
        let paths: Vec<String> = words.cloned().collect();
        self.each(&paths, |shell, path| match mode {
            Some(mode) => shell.files.set_mode(path, mode),
            None if shell.files.exists(path) => Ok(()),
            None => Err(std::io::Error::other(format!("chmod: {path}: no such file"))),
        })
    }

    fn copy(&self, arguments: &[String], take: bool) -> Finished {
        let paths: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
        let [from, to] = paths.as_slice() else {
            return Finished::fail(1, "sh: cp and mv take one file and its new place here");
        };
        let (from, mut to) = (self.path(from), self.path(to));
        if self.files.is_directory(&to) {
            to = format!("{to}/{}", from.rsplit('/').next().unwrap_or_default());
        }
        let outcome = self
            .files
            .read(&from)
            .and_then(|content| self.files.write(&to, &content, false))
            .and_then(|()| if take { self.files.remove(&from) } else { Ok(()) });
        match outcome {
            Ok(()) => Finished::default(),
            Err(error) => Finished::fail(1, error),
        }
    }

    fn list(&self, arguments: &[String]) -> Finished {
        let path = self.path(arguments.iter().find(|a| !a.starts_with('-')).map_or("", String::as_str));
        match self.files.list(&path) {
            Ok(names) => Finished::out(names.iter().map(|name| format!("{name}\n")).collect::<String>()),
            Err(_) if self.files.exists(&path) => Finished::out(format!("{path}\n")),
            Err(error) => Finished::fail(2, format!("ls: {error}")),
        }
    }

    fn grep(&self, arguments: &[String], input: &[u8]) -> Finished {
        let quiet = arguments.iter().any(|a| a.starts_with('-') && a.contains('q'));
        let mut words = arguments.iter().filter(|a| !a.starts_with('-'));
        let Some(pattern) = words.next() else {
            return Finished::fail(2, "grep: a pattern is missing");
        };
        let mut content = Vec::new();
        let mut files = 0;
        for path in words {
            files += 1;
            match self.files.read(&self.path(path)) {
                Ok(bytes) => content.extend(bytes),
                Err(error) => return Finished::fail(2, format!("grep: {error}")),
            }
        }
        if files == 0 {
            content = input.to_vec();
        }
        let text = String::from_utf8_lossy(&content);
        let found: Vec<&str> = text.lines().filter(|line| line.contains(pattern.as_str())).collect();
        Finished {
            status: i32::from(found.is_empty()),
            out: if quiet {
                Vec::new()
            } else {
                found.iter().map(|line| format!("{line}\n")).collect::<String>().into_bytes()
            },
            err: Vec::new(),
        }
    }

    fn test(&self, arguments: &[String]) -> Finished {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (negate, words) = match words.split_first() {
            Some((&"!", rest)) => (true, rest),
            _ => (false, words.as_slice()),
        };
        let number = |text: &str| text.trim().parse::<i64>().unwrap_or(0);
        let holds = match *words {
            [] => false,
            [text] => !text.is_empty(),
            ["-n", text] => !text.is_empty(),
            ["-z", text] => text.is_empty(),
            ["-e", path] => self.files.exists(&self.path(path)),
            ["-f" | "-r" | "-s" | "-x", path] => {
                let path = self.path(path);
                self.files.exists(&path) && !self.files.is_directory(&path)
            }
            ["-d", path] => self.files.is_directory(&self.path(path)),
            [left, "=" | "==", right] => left == right,
            [left, "!=", right] => left != right,
            [left, "-eq", right] => number(left) == number(right),
            [left, "-ne", right] => number(left) != number(right),
            [left, "-gt", right] => number(left) > number(right),
            [left, "-ge", right] => number(left) >= number(right),
            [left, "-lt", right] => number(left) < number(right),
            [left, "-le", right] => number(left) <= number(right),
            _ => return Finished::fail(2, "sh: test: this expression is not known here"),
        };
        Finished::status(i32::from(holds == negate))
    }
}

fn echo(arguments: &[String]) -> Finished {
    let (newline, words) = match arguments.split_first() {
        Some((first, rest)) if first == "-n" => ("", rest),
        Some((first, rest)) if first == "-e" => ("\n", rest),
        _ => ("\n", arguments),
    };
    Finished::out(format!("{}{newline}", words.join(" ")))
}

fn printf(arguments: &[String]) -> Finished {
    let Some((format, values)) = arguments.split_first() else {
        return Finished::fail(2, "printf: a format is missing");
    };
    let mut values = values.iter();
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some(other) => out.push(other),
                None => out.push('\\'),
            },
            '%' => match chars.next() {
                Some('s' | 'd') => out.push_str(values.next().map_or("", String::as_str)),
                Some(other) => out.push(other),
                None => out.push('%'),
            },
            c => out.push(c),
        }
    }
    Finished::out(out)
}

async fn sleep(arguments: &[String]) -> Finished {
    let Some(text) = arguments.first() else {
        return Finished::fail(1, "sleep: a number is missing");
    };
    let (number, unit) = match text.strip_suffix(['s', 'm', 'h']) {
        Some(number) if text.ends_with('m') => (number, 60.0),
        Some(number) if text.ends_with('h') => (number, 3600.0),
        Some(number) => (number, 1.0),
        None => (text.as_str(), 1.0),
    };
    match number.parse::<f64>().ok().and_then(|n| Duration::try_from_secs_f64(n * unit).ok()) {
        Some(duration) => {
            tokio::time::sleep(duration).await;
            Finished::default()
        }
        None => Finished::fail(1, format!("sleep: {text}: is no duration")),
    }
}
