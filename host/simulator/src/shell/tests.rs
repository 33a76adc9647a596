use std::sync::Arc;

use super::{Finished, Programs, Shell};
use crate::files::{Files, MemoryFiles};

/// A program that shows its arguments, one in brackets each.
struct Show;

#[async_trait::async_trait]
impl Programs for Show {
    async fn run(&self, argv: &[String]) -> Option<Finished> {
        let (name, arguments) = argv.split_first()?;
        (name == "show").then(|| Finished::out(arguments.iter().map(|a| format!("[{a}]")).collect::<String>()))
    }
}

fn shell() -> (Shell, Arc<MemoryFiles>) {
    let files = Arc::new(MemoryFiles::fresh("node-1"));
    (Shell::new(files.clone(), Arc::new(Show), "node-1"), files)
}

async fn run(line: &str) -> (i32, String, String) {
    let (mut shell, _) = shell();
    let finished = shell.run(line).await;
    (
        finished.status,
        String::from_utf8_lossy(&finished.out).into_owned(),
        String::from_utf8_lossy(&finished.err).into_owned(),
    )
}

#[tokio::test]
async fn words_are_what_a_posix_shell_makes_of_them() {
    for (line, out) in [
        ("show a  b", "[a][b]"),
        ("show 'a  b' \"c d\"", "[a  b][c d]"),
        (r#"show 'it'\''s' a\ b "\"q\" \$x \n""#, r#"[it's][a b]["q" $x \n]"#),
        ("show '' \"\" a''b", "[][][ab]"),
        ("show a#b # comment", "[a#b]"),
        ("A='x  y'; show $A \"$A\" ${A}z '$A'", "[x][y][x  y][x][yz][$A]"),
        ("A=; show $A", ""),
        ("show pre$(echo 'a b')post \"$(echo 'a b')\" `hostname`", "[prea][bpost][a b][node-1]"),
        ("A=$(echo 'a b'); show \"$A\"", "[a b]"),
        ("A=1 true; show \"$A\"", "[]"),
        ("show $HOME $ 5$", "[/root][$][5$]"),
        ("show a\\\nb", "[ab]"),
        ("show a \\\n b", "[a][b]"),
        ("show {{ x }}", "[{{][x][}}]"),
        ("false; show $?", "[1]"),
        ("show grüße", "[grüße]"),
    ] {
        assert_eq!(run(line).await, (0, out.to_owned(), String::new()), "{line}");
    }
}

#[tokio::test]
async fn lists_follow_the_status() {
    for (line, status, out) in [
        ("true && echo a", 0, "a\n"),
        ("false && echo a", 1, ""),
        ("false || echo a", 0, "a\n"),
        ("false && echo a || echo b", 0, "b\n"),
        ("true || echo a && echo b", 0, "b\n"),
        ("false; echo a", 0, "a\n"),
        ("echo a\n\n  echo b\n", 0, "a\nb\n"),
        ("false &&\n echo a", 1, ""),
        ("exit 3; echo a", 3, ""),
        ("echo a b | cat", 0, "a b\n"),
        ("echo abc | grep b && echo yes", 0, "abc\nyes\n"),
        ("echo abc | grep -q x", 1, ""),
        ("test -f /etc/hosts && [ ! -d /none ] && [ 1 -lt 2 ] && [ a = a ]", 0, ""),
        ("sh -c 'echo in; exit 4' || echo out $?", 0, "in\nout 4\n"),
        ("printf '%s-%s\\n' a b", 0, "a-b\n"),
        ("", 0, ""),
        ("# nothing", 0, ""),
    ] {
        let (seen, text, _) = run(line).await;
        assert_eq!((seen, text.as_str()), (status, out), "{line}");
    }
}

#[tokio::test]
async fn redirections_write_files() {
    let (mut shell, files) = shell();
    let script = "mkdir -p /run/x && cd /run/x && echo one > a && echo two >> a; cat none 2> err; cat none > both 2>&1; cat < a > b; echo quiet >/dev/null";
    let finished = shell.run(script).await;
    assert_eq!((finished.status, finished.out, finished.err), (0, Vec::new(), Vec::new()));
    let text = |path: &str| String::from_utf8(files.read(path).unwrap()).unwrap();
    assert_eq!(text("/run/x/a"), "one\ntwo\n");
    assert_eq!(text("/run/x/b"), "one\ntwo\n");
    assert!(text("/run/x/err").contains("/run/x/none: no such file"));
    assert_eq!(text("/run/x/err"), text("/run/x/both"));

    let finished = shell.run("echo x > /nowhere/file && echo never").await;
    assert_eq!(finished.status, 2);
    assert!(String::from_utf8_lossy(&finished.err).contains("cannot create /nowhere/file"));
    // `>` truncates even where the command fails.
    shell.run("false > /run/x/a").await;
    assert_eq!(text("/run/x/a"), "");
}

#[tokio::test]
async fn scripts_are_run_from_files() {
    let (mut shell, files) = shell();
    files.put("/usr/local/bin/go.sh", 0o755, b"#!/bin/sh\nset -e\necho from script\nexit 7\n", false).unwrap();
    let finished = shell.run("/usr/local/bin/go.sh; echo then $?").await;
    assert_eq!(String::from_utf8_lossy(&finished.out), "from script\nthen 7\n");
    files.put("/loop", 0o755, b"sh /loop", false).unwrap();
    let finished = shell.run("sh /loop").await;
    assert_eq!(finished.status, 2);
    assert!(String::from_utf8_lossy(&finished.err).contains("nested too deeply"));
}

#[tokio::test]
async fn what_is_not_known_is_said() {
    let (status, _, err) = run("systemctl restart containerd && modprobe br_netfilter").await;
    assert_eq!(status, 0);
    assert!(err.contains("systemctl") && err.contains("modprobe") && err.contains("taken as done"), "{err}");
    for (line, part) in [
        ("if true; then echo; fi", "`if`"),
        ("for a in b; do echo; done", "`for`"),
        ("cat <<E\nx\nE", "here-documents"),
        ("(echo a)", "subshells"),
        ("sleep 1 &", "background"),
        ("echo 'a", "single quote"),
        ("echo \"a", "double quote"),
        ("echo $(a", "$("),
        ("echo ${A:-b}", "${NAME}"),
        ("&& a", "a command is missing"),
        ("a &&", "ends too early"),
        ("a ||| b", "syntax error"),
        ("echo >", "file name"),
    ] {
        let (status, out, err) = run(line).await;
        assert_eq!((status, out.as_str()), (2, ""), "{line}");
        assert!(err.contains(part), "{line}: {err}");
    }
}
