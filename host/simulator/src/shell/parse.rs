//! Command lines as lists of pipelines.

/// What must hold of the command before for this one to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connector {
    Always,
    And,
    Or,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    /// Name, and whether it stood in double quotes.
    Variable(String, bool),
    /// A script whose output stands here, and whether it stood in double quotes.
    Command(String, bool),
}

pub(super) type Word = Vec<Piece>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Replace,
    Append,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    In(Word),
    Out(Mode, Word),
    Err(Mode, Word),
    Both(Mode, Word),
    ErrToOut,
    OutToErr,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Simple {
    pub(super) assignments: Vec<(String, Word)>,
    pub(super) words: Vec<Word>,
    pub(super) redirects: Vec<Redirect>,
}

impl Simple {
    fn is_empty(&self) -> bool {
        self.assignments.is_empty() && self.words.is_empty() && self.redirects.is_empty()
    }
}

pub(super) type List = Vec<(Connector, Vec<Simple>)>;

/// Words that begin what this shell does not know.
const RESERVED: [&str; 14] =
    ["if", "then", "elif", "else", "fi", "for", "while", "until", "do", "done", "case", "esac", "function", "{"];

struct Reader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
}

/// Parses a script; an error says what is wrong or not known, without quoting the script.
pub(super) fn parse(text: &str) -> Result<List, String> {
    let mut reader = Reader { rest: text.chars().peekable() };
    let mut list: List = Vec::new();
    let mut connector = Connector::Always;
    let mut pipeline: Vec<Simple> = Vec::new();
    let mut command = Simple::default();
    loop {
        reader.blanks();
        let Some(&next) = reader.rest.peek() else {
            break;
        };
        let complete = match next {
            '\n' | ';' => {
                reader.rest.next();
                if command.is_empty() && next == ';' {
                    return Err("syntax error near `;`".into());
                }
                if command.is_empty() && (!pipeline.is_empty() || connector != Connector::Always) {
                    continue; // a line may end behind `|`, `&&` and `||`
                }
                Some(Connector::Always)
            }
            '&' => {
                reader.rest.next();
                if reader.rest.next_if_eq(&'&').is_some() {
                    Some(Connector::And)
                } else if reader.rest.next_if_eq(&'>').is_some() {
                    let mode = reader.mode();
                    let target = reader.target()?;
                    command.redirects.push(Redirect::Both(mode, target));
                    continue;
                } else {
                    return Err("programs in the background (`&`) are not known here".into());
                }
            }
            '|' => {
                reader.rest.next();
                if reader.rest.next_if_eq(&'|').is_some() {
                    Some(Connector::Or)
                } else {
                    if command.is_empty() {
                        return Err("syntax error near `|`".into());
                    }
                    pipeline.push(std::mem::take(&mut command));
                    continue;
                }
            }
            '(' | ')' => return Err("subshells and functions are not known here".into()),
            '<' => {
                reader.rest.next();
                if reader.rest.peek() == Some(&'<') {
                    return Err("here-documents (`<<`) are not known here".into());
                }
                let target = reader.target()?;
                command.redirects.push(Redirect::In(target));
                continue;
            }
            '>' => {
                reader.rest.next();
                reader.output(&mut command, false)?;
                continue;
            }
            _ => {
                let word = reader.word()?;
                // `2>` and `1>`: a number right before the sign.
                if reader.rest.peek() == Some(&'>')
                    && let [Piece::Text(number)] = word.as_slice()
                    && (number == "1" || number == "2")
                {
                    reader.rest.next();
                    reader.output(&mut command, number == "2")?;
                    continue;
                }
                if command.words.is_empty() {
                    if let Some((name, value)) = assignment(&word) {
                        command.assignments.push((name, value));
                        continue;
                    }
                    if let [Piece::Text(text)] = word.as_slice()
                        && RESERVED.contains(&text.as_str())
                    {
                        return Err(format!("`{text}` is not known here; put it into a program of the image"));
                    }
                }
                command.words.push(word);
                continue;
            }
        };
        if let Some(following) = complete {
            if command.is_empty() {
                if following == Connector::Always && pipeline.is_empty() {
                    continue; // an empty line
                }
                return Err("syntax error: a command is missing".into());
            }
            pipeline.push(std::mem::take(&mut command));
            list.push((connector, std::mem::take(&mut pipeline)));
            connector = following;
        }
    }
    if !command.is_empty() {
        pipeline.push(command);
        list.push((connector, pipeline));
    } else if !pipeline.is_empty() || connector != Connector::Always {
        return Err("syntax error: the script ends too early".into());
    }
    Ok(list)
}

/// `NAME=value` at the beginning of a word.
fn assignment(word: &Word) -> Option<(String, Word)> {
    let Some(Piece::Text(first)) = word.first() else {
        return None;
    };
    let (name, value) = first.split_once('=')?;
    let valid = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !valid {
        return None;
    }
    let mut rest = vec![Piece::Text(value.to_owned())];
    rest.extend(word.iter().skip(1).map(|piece| match piece {
        // No splitting in assignments.
        Piece::Variable(name, _) => Piece::Variable(name.clone(), true),
        Piece::Command(script, _) => Piece::Command(script.clone(), true),
        text => text.clone(),
    }));
    Some((name.to_owned(), rest))
}

impl Reader<'_> {
    fn blanks(&mut self) {
        loop {
            match self.rest.peek() {
                Some(' ' | '\t' | '\r') => {
                    self.rest.next();
                }
                Some('\\') => {
                    // A backslash at the end of a line joins lines; otherwise it belongs to a word.
                    let mut ahead = self.rest.clone();
                    ahead.next();
                    if ahead.next() != Some('\n') {
                        return;
                    }
                    self.rest = ahead;
                }
                Some('#') => while self.rest.next_if(|c| *c != '\n').is_some() {},
                _ => return,
            }
        }
    }

    fn mode(&mut self) -> Mode {
        if self.rest.next_if_eq(&'>').is_some() { Mode::Append } else { Mode::Replace }
    }

    /// Behind `>` or `2>`.
    fn output(&mut self, command: &mut Simple, error: bool) -> Result<(), String> {
        let mode = self.mode();
        if mode == Mode::Replace && self.rest.next_if_eq(&'&').is_some() {
            let redirect = match (error, self.rest.next()) {
                (true, Some('1')) => Redirect::ErrToOut,
                (false, Some('2')) => Redirect::OutToErr,
                _ => return Err("descriptors other than 1 and 2 are not known here".into()),
            };
            command.redirects.push(redirect);
            return Ok(());
        }
        let target = self.target()?;
        command.redirects.push(if error { Redirect::Err(mode, target) } else { Redirect::Out(mode, target) });
        Ok(())
    }

    fn target(&mut self) -> Result<Word, String> {
        self.blanks();
        let word = self.word()?;
        if word.is_empty() { Err("syntax error: a file name is missing".into()) } else { Ok(word) }
    }

    fn word(&mut self) -> Result<Word, String> {
        let mut word = Word::new();
        let mut text = String::new();
        let mut quoted_empty = false;
        while let Some(&c) = self.rest.peek() {
            match c {
                ' ' | '\t' | '\r' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' | ')' => break,
                '\'' => {
                    self.rest.next();
                    quoted_empty = true;
                    loop {
                        match self.rest.next() {
                            Some('\'') => break,
                            Some(c) => text.push(c),
                            None => return Err("syntax error: a single quote is not closed".into()),
                        }
                    }
                }
                '"' => {
                    self.rest.next();
                    quoted_empty = true;
                    self.double_quoted(&mut word, &mut text)?;
                }
                '\\' => {
                    self.rest.next();
                    match self.rest.next() {
                        Some('\n') | None => {}
                        Some(c) => text.push(c),
                    }
                }
                '$' => {
                    self.rest.next();
                    self.dollar(&mut word, &mut text, false)?;
                }
                '`' => {
                    self.rest.next();
                    let script = self.until_backtick()?;
                    flush(&mut word, &mut text);
                    word.push(Piece::Command(script, false));
                }
                c => {
                    self.rest.next();
                    text.push(c);
                }
            }
        }
        flush(&mut word, &mut text);
        if word.is_empty() && quoted_empty {
            word.push(Piece::Text(String::new()));
        }
        Ok(word)
    }

    fn double_quoted(&mut self, word: &mut Word, text: &mut String) -> Result<(), String> {
        let before = word.len() + text.len();
        loop {
            match self.rest.next() {
                Some('"') => {
                    // An empty string in quotes is an argument all the same.
                    if word.len() + text.len() == before {
                        word.push(Piece::Text(String::new()));
                    }
                    return Ok(());
                }
                Some('\\') => match self.rest.next() {
                    Some('\n') => {}
                    Some(c @ ('"' | '\\' | '$' | '`')) => text.push(c),
                    Some(c) => {
                        text.push('\\');
                        text.push(c);
                    }
                    None => break,
                },
                Some('$') => self.dollar(word, text, true)?,
                Some('`') => {
                    let script = self.until_backtick()?;
                    flush(word, text);
                    word.push(Piece::Command(script, true));
                }
                Some(c) => text.push(c),
                None => break,
            }
        }
        Err("syntax error: a double quote is not closed".into())
    }

    /// Behind `$`.
    fn dollar(&mut self, word: &mut Word, text: &mut String, quoted: bool) -> Result<(), String> {
        match self.rest.peek().copied() {
            Some('(') => {
                self.rest.next();
                let script = self.until_parenthesis()?;
                flush(word, text);
                word.push(Piece::Command(script, quoted));
            }
            Some('{') => {
                self.rest.next();
                let mut name = String::new();
                loop {
                    match self.rest.next() {
                        Some('}') => break,
                        Some(c) if c.is_ascii_alphanumeric() || c == '_' || c == '?' => name.push(c),
                        _ => return Err("of `${…}` only `${NAME}` is known here".into()),
                    }
                }
                flush(word, text);
                word.push(Piece::Variable(name, quoted));
            }
            Some('?') => {
                self.rest.next();
                flush(word, text);
                word.push(Piece::Variable("?".into(), quoted));
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                let mut name = String::new();
                while let Some(c) = self.rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
                    name.push(c);
                }
                flush(word, text);
                word.push(Piece::Variable(name, quoted));
            }
            _ => text.push('$'),
        }
        Ok(())
    }

    fn until_parenthesis(&mut self) -> Result<String, String> {
        let mut script = String::new();
        let mut depth = 1;
        let mut quote = None;
        for c in self.rest.by_ref() {
            match (quote, c) {
                (None, '\'' | '"') => quote = Some(c),
                (Some(open), c) if open == c => quote = None,
                (None, '(') => depth += 1,
                (None, ')') => {
                    depth -= 1;
                    if depth == 0 {
                        return Ok(script);
                    }
                }
                _ => {}
            }
            script.push(c);
        }
        Err("syntax error: `$(` is not closed".into())
    }

    fn until_backtick(&mut self) -> Result<String, String> {
        let mut script = String::new();
        loop {
            match self.rest.next() {
                Some('`') => return Ok(script),
                Some(c) => script.push(c),
                None => return Err("syntax error: a backtick is not closed".into()),
            }
        }
    }
}

fn flush(word: &mut Word, text: &mut String) {
    if !text.is_empty() {
        word.push(Piece::Text(std::mem::take(text)));
    }
}
