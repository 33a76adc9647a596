"""A moto that is asked nothing twice."""

import difflib
import hashlib
import io
import os
import re
import sys
import threading

from moto.moto_api._internal import mock_random


class Memory:
    """Answers that are known already, for tests that live the same a thousand times.

    What moto answers depends on what it was told since it was cleared, and on nothing else: ids are drawn by that. So what was
    asked after the same is not asked again, and moto hears of it only when something is asked that is new. A read is asked twice at
    first: one that is answered otherwise the second time counts as told.
    """

    READS = ('Describe', 'Get', 'List')
    # What differs although nothing is different.
    TIMES = re.compile(rb'<(requestId|RequestId)>[^<]*<|\d{4}-\d\d-\d\dT[0-9:.]+(Z|\+00:00)?|"\w*Date": ?[0-9.e+]+')

    def __init__(self, app, clear):
        self.app, self.clear_all, self.lock = app, clear, threading.Lock()
        self.known, self.told, self.behind, self.touched = {}, b'', [], False

    def __call__(self, environ, start_response):
        body = environ['wsgi.input'].read(int(environ.get('CONTENT_LENGTH') or 0))
        who = environ.get('HTTP_AUTHORIZATION', '').split(',')[0].split('/')
        asked = repr([environ['REQUEST_METHOD'], environ['PATH_INFO'], environ.get('QUERY_STRING'), body, who[:1] + who[2:],
                      environ.get('HTTP_X_AMZ_TARGET')]).encode()
        with self.lock:
            status, headers, text = self.answer(environ, body, asked)
        start_response(status, headers)
        return [text]

    def answer(self, environ, body, asked):
        key = (self.told, asked)
        if key not in self.known:
            self.catch_up()
            found = self.ask(environ, body, key)
            after = self.after(key)
            if self.is_read(environ, body) and self.same(found, self.ask(environ, body, key)):
                after = self.told
            self.known[key] = (found, after)
        elif self.known[key][1] != self.told:
            self.behind.append((environ, body, key))
        found, self.told = self.known[key]
        return found

    def after(self, key):
        return hashlib.sha256(key[0] + key[1]).digest()

    def is_read(self, environ, body):
        target = environ.get('HTTP_X_AMZ_TARGET', '').rsplit('.', 1)[-1]
        form = re.search(rb'(?:^|&)Action=(\w+)', body)
        action = target or (form.group(1).decode() if form else '')
        return action.startswith(self.READS) if action else environ['REQUEST_METHOD'] in ('GET', 'HEAD')

    def same(self, one, other):
        return one[0] == other[0] and self.TIMES.sub(b'', one[2]) == self.TIMES.sub(b'', other[2])

    def ask(self, environ, body, key):
        self.touched, seen = True, {}
        mock_random.seed(int.from_bytes(self.after(key), 'big'))

        def note(status, headers, exc_info=None):
            seen['answer'] = status, headers
        text = b''.join(self.app({**environ, 'wsgi.input': io.BytesIO(body)}, note))
        return (*seen['answer'], text)

    def catch_up(self):
        """Tells moto what was answered without it."""
        behind, self.behind = self.behind, []
        for environ, body, key in behind:
            found = self.ask(environ, body, key)
            if not self.same(found, self.known[key][0]):
                texts = [self.TIMES.sub(b'', text).decode().split('>') for text in (self.known[key][0][2], found[2])]
                print('moto is no function of what it was told', key[1], *difflib.unified_diff(*texts, n=2), sep='\n', file=sys.stderr)
                os._exit(1)

    def left(self, listing):
        with self.lock:
            key = (self.told, b'left')
            if key not in self.known:
                self.catch_up()
                self.known[key] = listing()
            return self.known[key]

    def clear(self):
        with self.lock:
            if self.touched:
                self.clear_all()
            self.told, self.behind, self.touched = b'', [], False
