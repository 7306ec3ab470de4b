// Makes families.json.gz: small tokenizer files, one for each shape of pipeline that
// real families have, and the ids that the official library gives their texts. Run
// by hand:
//
//	npm install tokenizers@0.23.2   # HuggingFace's own binding of the Rust library
//	node record_families.js
//
// The file holds
//
//	bases  vocabularies by name, trained here by the official trainer on the texts
//	       below without regard to words, so that a wrong cut shows in the ids
//	cases  tokenizer files: file is the whole of one but for the model's vocab and
//	       merges, which are the base's without the tokens of drop, with those of
//	       vocab and merges; legacy writes merges as lines. around is what the
//	       post-processor puts before and after the ids.
//	rows   texts, and for each ids that they have the numbers of the cases that
//	       give them
const fs = require('fs');
const os = require('os');
const path = require('path');
const zlib = require('zlib');
const { Tokenizer, BPE } = require('tokenizers');

// ---- texts

function random(seed) {
	return () => {
		seed = (seed + 0x6d2b79f5) | 0;
		let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
		t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
		return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
	};
}

const prose = [
	"The harbour master walks along the wall, counts 1,234 boats and says: \"It's late, they've gone; we'll wait until 9:30.\"",
	"I'M SURE YOU'RE RIGHT, HE'D SAID. Don't DON'T don'T 'twas o'clock rock'n'roll n't",
	'for (let i = 0; i < 10; i++) {\n\t\tconsole.log(`${i}: ${a[i]}`);\n}\r\n\r\n// done\n',
	'def __init__(self, camelCase=None, HTTPServer2="x"):\n    return [x**2 for x in range(100000) if x != 0x7fff]\n\n\n',
	'SELECT COUNT(*) FROM users WHERE id>=10 AND name LIKE \'%a%\';',
	'https://example.com/a/b_c?d=e%20f&g=1#h  user@host.org  C:\\Users\\x\\y.txt  $HOME/.bashrc  #!/bin/sh',
	'{"key": [1, 2.50, -3e10, null, true], "text": "a\\nb"}',
	'人工智能正在改变世界，机器学习模型可以理解自然语言。今天是2024年3月15日！',
	'吾輩は猫である。名前はまだ無い。カタカナとひらがなと漢字と１２３。',
	'대한민국의 모든 국민은 법 앞에 평등하다. 3일',
	'Все люди рождаются свободными и равными в своём достоинстве и правах. Ещё раз: ЁЛКА!',
	'Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι· ΑΣΣ σς',
	'كل الناس يولدون أحرارًا ومتساوين في الكرامة والحقوق. ١٢٣٤٥',
	'כל בני האדם נולדו בני חורין ושווים בערכם. שָׁלוֹם',
	'सभी मनुष्य जन्म से स्वतंत्र हैं। १२३४ क्षत्रिय',
	'มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกัน ๑๒๓',
	'Tất cả mọi người sinh ra đều được tự do và bình đẳng. Zażółć gęślą jaźń. Ñandú, Straße, İstanbul, ǅungla, ﬁne',
	'தமிழ் മലയാളം తెలుగు বাংলা ગુજરાતી ქართული Հայերեն አማርኛ မြန်မာ ខ្មែរ བོད་ཡིག',
];

const curated = [
	'', ' ', '  ', '   ', '\n', '\n\n', ' \n', '\n ', '\t', '\r\n', '\r', ' \r\n \r\n  x', 'a', ' a', 'a ', '  a', 'a  b', 'a   b    c     d', '   leading and trailing   ',
	'x\n\n\n  y', 'x \n y', 'x\n y', 'x  \n  y\n', '\n\n\n\n', ' '.repeat(17) + 'x' + ' '.repeat(33), '\t\t x\t\ty \t', '\u00a0a\u00a0 b', '\u3000日\u3000本', 'a\u2028b\u2029c\u0085d\u000be\u000cf', 'a\u200bb\u200cc\u200dd\ufeffe', '\u001c\u001d\u001e\u001f',
	"'s", "it's", "IT'S", "it'S they'LL we'Ve I'D I'm", "it'\u017f it'\u017fx '\u212a", "''s's 's 's", "a's1's 's's", "x'lll y'rere z'vet", "don’t it’s", "'", "''", "'''", " '", "' ", "'a", "l'été d'accord",
	'1', '12', '123', '1234', '12345', '123456', '1234567', ' 1', ' 1234', '1 2 3', '1a2b3c', 'a1', '1.5', '1,000,000', '１２３４５', '٣٤٥٦', '²³¹ ½¾ Ⅷ ⅷ ① ㊿ 〇 三', '𝟘𝟙𝟚𝟛', '1²2³', 'x²+y³', '９9٩',
	'!', '!!', '!!!!', ' !', ' !!', '! !', 'a!b', '!a', ' !a', '#include', '/usr//bin/', '//', '=\n', '!\n\n', '!\r\n/\n', '!/\n/', '.a', '.A', '-1', '--x', '"q"', '(a)(b)', '[x][y]', '@#$%^&*', '_a_', '__init__', 'a_b', '…—–', '。！？', '«a» “b”', '€5 £6 $7', '+=<>|~^`', 'a…b', '!?日', '、日', '(日)',
	'camelCase', 'CamelCase', 'HTTPServer', 'iPhone', 'McDonald', 'ABCdefGHI', 'aBcDeF', 'ÀÉî', 'ǅa aǅ', 'ʰa', 'ªº', 'aªAº', 'ԱՎարև', 'ΑΒγ', 'ЁЖик', 'ზЗ', 'Ꭰꭰ', '𐐀𐐨', 'A日b本C', 'あA', 'Aあa', "ABC's Abc's aBC'LL",
	'e\u0301', '\u0301', ' \u0301', 'a\u0301\u0323', 'a\u0323\u0301', '\u0301a', '\n\u0301', '1\u0301', '!\u0301', 'é', 'Å Å Å', 'ﬁ ﬀ ㍿ ﷺ', '각 각', '각', 'क़ क\u093c', '\u0f71\u0f72\u0f74', '\u0344\u0340\u0341\u0343', 'ｶﾞ ガ', '\u1e9b\u0323', 'q\u0307\u0323', 'Ω K', '豈 更', '\u{1d15e} \u{2f800}', '\ufb2c', 'x\u034fy',
	'😀', '😀😀', 'a😀b', ' 😀', '👍🏽', '👨‍👩‍👧‍👦', '🇩🇪🇫🇷', '❤️', '1️⃣', '🏴󠁧󠁢󠁥󠁮󠁧󠁿', '🧑🏿‍🚀 go', '\u200d', '\ufe0f', '\u0000', 'a\u0000b', '\u0001\u0002\u007f\u0080\u009f', '\ufffd', '\uffff', '\u{10ffff}', '\ue000', '\u{1fffe}',
	'▁', '▁▁', '▁a', 'a▁b', ' ▁ a', '▁ ▁', 'Ġ', 'ĠaĊ', '<0x41>', '<0x0A>', '<0xE4>', '<unk>', '<s>', '</s>', '<s>a</s>', ' <s> a', '<unk><unk>', '<pad>',
	'a'.repeat(50), ' a'.repeat(30), 'ab'.repeat(40), 'the'.repeat(30), '日'.repeat(25), 'é'.repeat(25), '😀'.repeat(9), '!'.repeat(40), '1'.repeat(40), '\n'.repeat(20), ' \n'.repeat(12), 'A'.repeat(20) + 'a'.repeat(20), 'Aa'.repeat(20), '\u0301'.repeat(20), '▁'.repeat(20), 'donaudampfschifffahrtsgesellschaftskapitän'.repeat(3),
	'<!dummy-prefix!>', '<!dummy-prefix!>a', 'a<!dummy-prefix!>b', ' <!dummy-prefix!> a', '<!dummy-prefix!><!dummy-prefix!>', '<!dummy', 'a\tb', 'a|b,c', 'a,b', ',a', 'a,', ',,', 'a,,b', ',', 'xy', 'yx', 'xyx', 'aXbXc', 'X', 'XX', 'aXX', 'XXa',
];

// A random source of short texts of many kinds; own are the added tokens to mix in.
function nasty(seed, own) {
	const next = random(seed);
	const int = (n) => Math.floor(next() * n);
	const pick = (from) => from[int(from.length)];
	const times = (n, f) => Array.from({ length: n }, f).join('');
	const within = (ranges) => {
		const [from, to] = pick(ranges);
		return String.fromCodePoint(from + int(to - from + 1));
	};
	const letters = [[0x61, 0x7a], [0x41, 0x5a], [0xc0, 0x24f], [0x370, 0x3ff], [0x400, 0x4ff], [0x531, 0x587], [0x5d0, 0x5ea], [0x620, 0x64a], [0x904, 0x939], [0xe01, 0xe30], [0x10a0, 0x10ff], [0x1e00, 0x1fff], [0x3041, 0x30ff], [0x4e00, 0x4fff], [0xac00, 0xaeff], [0xff21, 0xff9f], [0x10400, 0x1044f], [0x1d400, 0x1d4ff], [0x20000, 0x200ff], [0xf900, 0xf9ff]];
	const marks = [[0x300, 0x345], [0x591, 0x5bd], [0x64b, 0x655], [0x93c, 0x94d], [0x3099, 0x309a], [0xfe0e, 0xfe0f], [0x200d, 0x200d], [0x11a8, 0x11af]];
	const numbers = [[0x30, 0x39], [0x660, 0x669], [0x966, 0x96f], [0xb2, 0xb3], [0xbc, 0xbe], [0x2160, 0x216f], [0xff10, 0xff19], [0x1d7ce, 0x1d7ff]];
	const words = prose.join(' ').split(/\s+/);
	const spaces = [' ', ' ', ' ', '  ', '   ', '\t', '\n', '\n\n', '\r\n', '\r', '\u00a0', '\u2003', '\u3000', '\u2028', '\u0085', '\u200b', '\u000b'];
	const marksOf = '!"#$%&\'()*+,-./:;<=>?@[\\]^_`{|}~…—«»、。·§€×→√©▁';
	const kinds = [
		() => pick(words), () => ' ' + pick(words), () => pick(words), () => ' ' + pick(words).toUpperCase(),
		() => within(letters), () => times(1 + int(4), () => within(letters)), () => within(letters) + within(marks), () => within(marks),
		() => pick(spaces), () => pick(spaces), () => times(1 + int(4), () => pick(spaces)),
		() => times(1 + int(7), () => within([[0x30, 0x39]])), () => times(1 + int(3), () => within(numbers)),
		() => pick([...marksOf]), () => times(1 + int(3), () => pick([...marksOf])),
		() => pick(["'s", "'T", "'ll", "'\u017f", "'VE", "n't", '’s']), () => pick(['😀', '👍🏽', '👩‍🚀', '🇩🇪', '❤️', '\u0000', '\ufffd', '\ufeff', '\u{e0041}', '<0x0A>', '<s>']),
	];
	if (own.length > 0) {
		const added = () => pick(own);
		const cut = (s) => [...s].slice(0, int(s.length + 1)).join('');
		kinds.push(added, added, added, added, () => pick(spaces) + added() + pick(spaces), () => added() + added(), () => cut(added()) + added(), () => pick(['a', '日', '_', '-', '1', '\u0301']) + added() + pick(['a', '日', '_', '-', '1', '\u0301']));
	}
	return () => times(1 + int(own.length > 0 ? 8 : 10), () => pick(kinds)());
}

function some(n, seed, own) {
	const next = nasty(seed, own);
	return Array.from({ length: n }, next);
}

// ---- bases

// The characters that byte-level files write the bytes 0 to 255 with.
const alphabet = (() => {
	const out = [];
	for (let b = 0, next = 0x100; b < 256; b++) {
		const printed = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
		out.push(String.fromCodePoint(printed ? b : next++));
	}
	return out;
})();

const hex = (b) => `<0x${b.toString(16).toUpperCase().padStart(2, '0')}>`;

const sample = [...prose, ...prose, ...curated.filter((s) => s.length < 60), ...some(150, 1, [])];

// train returns the first merges that the official trainer makes of the sample.
function train(merges, normalizer, preTokenizer) {
	const model = { type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false, byte_fallback: false, vocab: {}, merges: [] };
	const tokenizer = Tokenizer.fromString(JSON.stringify({ version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer, pre_tokenizer: preTokenizer, post_processor: null, decoder: null, model }));
	const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'families'));
	const file = path.join(dir, 'sample.txt');
	fs.writeFileSync(file, sample.join('\n'));
	tokenizer.train([file]);
	tokenizer.save(path.join(dir, 'trained.json'));
	const trained = JSON.parse(fs.readFileSync(path.join(dir, 'trained.json'), 'utf8'));
	fs.rmSync(dir, { recursive: true });
	return trained.model.merges.slice(0, merges);
}

const numbered = (tokens) => Object.fromEntries([...new Set(tokens)].map((token, id) => [token, id]));

function byteBase() {
	const merges = train(420, null, { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false });
	return { vocab: numbered([...alphabet, ...merges.map((m) => m.join(''))]), merges };
}

function characterBase(preTokenizer) {
	const replace = { type: 'Replace', pattern: { String: ' ' }, content: '▁' };
	const merges = train(330, replace, preTokenizer);
	const bytes = Array.from({ length: 256 }, (_, b) => hex(b));
	const parts = merges.flat().filter((part) => [...part].length === 1);
	return { vocab: numbered(['<unk>', '<s>', '</s>', ...bytes, ...merges.map((m) => m.join('')), ...parts, '▁']), merges };
}

const bases = {
	bytes: byteBase(),
	// As SentencePiece makes them: ▁ only begins tokens, or is all of them.
	words: characterBase({ type: 'Metaspace', replacement: '▁', prepend_scheme: 'never', split: true }),
	// Tokens that hold several words.
	phrases: characterBase(null),
};

// ---- cases

const gpt2 = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true };
const mapped = { ...gpt2, use_regex: false };
const regex = (Regex, behavior = 'Isolated', invert = false) => ({ type: 'Split', pattern: { Regex }, behavior, invert });
const literal = (String, behavior, invert = false) => ({ type: 'Split', pattern: { String }, behavior, invert });
const steps = (...pretokenizers) => ({ type: 'Sequence', pretokenizers });
const forms = (...normalizers) => ({ type: 'Sequence', normalizers });
const behaviors = ['Isolated', 'Removed', 'Contiguous', 'MergedWithPrevious', 'MergedWithNext'];

// The patterns of real families, each from its tokenizer.json.
const patterns = {
	'llama 3': "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
	'qwen 2': "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
	o200k: "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
	tekken: '[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+',
	clip: "<\\|startoftext\\|>|<\\|endoftext\\|>|'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+",
	bloom: ' ?[^(\\s|[.,!?…。，、।۔،])]+',
};
const deepseek = steps(
	regex('\\p{N}{1,3}'), regex('[一-龥぀-ゟ゠-ヿ]+'),
	regex("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"),
	mapped,
);
const llama3 = steps(regex(patterns['llama 3']), mapped);

const byteModel = { type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false, byte_fallback: false, ignore_merges: false };
const characterModel = { ...byteModel, unk_token: '<unk>', fuse_unk: true, byte_fallback: true };
const empty = { version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null };

const cases = [];
const groups = { general: [...curated, ...prose, ...some(120, 2, [])] };
const add = (name, base, file, more = {}) => {
	const { model, ...sections } = file;
	cases.push({ name, base, groups: ['general'], ...more, file: { ...empty, ...sections, model: { ...(base === 'bytes' ? byteModel : characterModel), ...model } } });
};
const bytes = (name, pre_tokenizer, file = {}, more = {}) => add(name, 'bytes', { pre_tokenizer, ...file }, more);

// Pre-tokenizers of byte-level files.
bytes('gpt2', gpt2);
bytes('gpt2 with a prefix space', { ...gpt2, add_prefix_space: true });
bytes('gpt2 without use_regex', { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true });
bytes('bytes in one piece', mapped);
for (const [name, pattern] of Object.entries(patterns)) bytes(name, steps(regex(pattern), mapped));
bytes('gpt4', steps(regex(patterns['llama 3'], 'Removed', true), mapped));
bytes('gpt4o', steps(regex(patterns.o200k, 'Removed', true), mapped));
bytes('clip removed', steps(regex(patterns.clip, 'Removed', true), gpt2));
bytes('llama 3 with a prefix space', steps(regex(patterns['llama 3']), { ...mapped, add_prefix_space: true }));
bytes('deepseek 3', deepseek);
bytes('falcon', steps({ type: 'Punctuation', behavior: 'Contiguous' }, gpt2, { type: 'Digits', individual_digits: false }, regex('[0-9][0-9][0-9]')));
bytes('command r', steps({ type: 'Digits', individual_digits: true }, gpt2), { normalizer: { type: 'NFC' } });
bytes('digits together', steps({ type: 'Digits', individual_digits: false }, gpt2));
bytes('nested steps', steps(steps(), steps(regex('\\p{N}{1,3}'), steps(gpt2))));
for (const behavior of behaviors) {
	bytes(`punctuation ${behavior}`, steps({ type: 'Punctuation', behavior }, mapped));
	bytes(`a space ${behavior}`, steps(literal(' ', behavior), mapped));
	bytes(`a space inverted ${behavior}`, steps(literal(' ', behavior, true), mapped));
	bytes(`llama 3 ${behavior}`, steps(regex(patterns['llama 3'], behavior), mapped));
	bytes(`digits ${behavior}`, steps(regex('\\p{N}{1,3}', behavior), mapped));
	bytes(`digits inverted ${behavior}`, steps(regex('\\p{N}{1,3}', behavior, true), mapped));
	bytes(`X ${behavior}`, steps(literal('X', behavior), gpt2));
}
bytes('two letters', steps(literal('xy', 'Isolated'), literal(',', 'MergedWithNext'), mapped));

// Normalizers before byte-level steps.
for (const type of ['NFC', 'NFD', 'NFKC', 'NFKD']) bytes(type, llama3, { normalizer: { type } });
bytes('no normalizers', llama3, { normalizer: forms() });
bytes('nested normalizers', llama3, { normalizer: forms(forms({ type: 'NFD' }), forms(), forms(forms({ type: 'NFC' }))) });
bytes('replaced letters', gpt2, { normalizer: forms({ type: 'Replace', pattern: { String: 'a' }, content: '' }, { type: 'Replace', pattern: { String: ' ' }, content: '  ' }, { type: 'Replace', pattern: { String: '  ' }, content: '\n' }) });
bytes('prepended to bytes', gpt2, { normalizer: { type: 'Prepend', prepend: ' x' } });
bytes('lowercase', gpt2, { normalizer: { type: 'Lowercase' } });
bytes('stripped', gpt2, { normalizer: { type: 'Strip', strip_left: true, strip_right: true } });
bytes('stripped left', gpt2, { normalizer: { type: 'Strip', strip_left: true, strip_right: false } });
bytes('white space replaced', gpt2, { normalizer: forms({ type: 'NFC' }, { type: 'Replace', pattern: { Regex: '\\s+' }, content: ' ' }) });
bytes('accents stripped', gpt2, { normalizer: forms({ type: 'NFD' }, { type: 'StripAccents' }) });

// Models of byte-level files.
const words = { ' harbour': 900, ' the': 901, 'qz': 902, ' 日本': 903, 'boats and says': 904 };
const written = (s) => [...Buffer.from(s)].map((b) => alphabet[b]).join('');
const unreachable = Object.fromEntries(Object.keys(words).map((w, i) => [written(w), 676 + i]));
bytes('tokens that no merge makes', llama3, {}, { vocab: unreachable });
bytes('merges ignored', llama3, { model: { ignore_merges: true } }, { vocab: unreachable });
bytes('merges as lines', gpt2, {}, { legacy: true });
bytes('no bytes that UTF-8 has not', gpt2, {}, { drop: [0xc0, 0xc1, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff].map((b) => alphabet[b]) });
for (const unk of [null, alphabet[63]]) {
	for (const fuse_unk of [false, true]) {
		bytes(`bytes missing ${unk ? 'with' : 'without'} unk${fuse_unk ? ' fused' : ''}`, gpt2, { model: { unk_token: unk, fuse_unk } }, { drop: ['0', '1', 'Ċ', alphabet[0xe3], alphabet[0x81]] });
	}
}

// Character-level files.
const underline = { type: 'Replace', pattern: { String: ' ' }, content: '▁' };
const prepend = { type: 'Prepend', prepend: '▁' };
const metaspace = (prepend_scheme, split) => ({ type: 'Metaspace', replacement: '▁', prepend_scheme, split });
for (const base of ['words', 'phrases']) {
	const put = (name, file, more) => add(`${base}: ${name}`, base, file, more);
	put('llama 2', { normalizer: forms(prepend, underline) });
	put('gemma', { normalizer: underline });
	put('gemma 2', { normalizer: underline, pre_tokenizer: literal(' ', 'MergedWithPrevious') });
	put('yi', { normalizer: forms(underline) });
	for (const scheme of ['always', 'first', 'never']) for (const split of [true, false]) put(`Metaspace ${scheme}${split ? ' split' : ''}`, { pre_tokenizer: metaspace(scheme, split) });
	put('Metaspace of old', { pre_tokenizer: { type: 'Metaspace', replacement: '▁', str_rep: '▁', add_prefix_space: true } });
	put('chatglm', { normalizer: forms({ type: 'Replace', pattern: { String: '<!dummy-prefix!>' }, content: '▁' }, underline), pre_tokenizer: literal('<!dummy-prefix!>', 'MergedWithNext') });
	put('no steps', {});
	put('NFKC', { normalizer: forms({ type: 'NFKC' }, prepend, underline) });
	put('runs of spaces', { normalizer: forms({ type: 'Replace', pattern: { Regex: ' {2,}' }, content: ' ' }, prepend, underline) });
	put('punctuation', { normalizer: underline, pre_tokenizer: steps({ type: 'Punctuation', behavior: 'Isolated' }, { type: 'Digits', individual_digits: true }) });
	put('Metaspace first after Strip', { normalizer: { type: 'Strip', strip_left: true, strip_right: true }, pre_tokenizer: metaspace('first', true) });
	put('Metaspace first after a word is replaced', { normalizer: { type: 'Replace', pattern: { String: 'The' }, content: 'a' }, pre_tokenizer: metaspace('first', true) });
	for (const fuse_unk of [false, true]) {
		const fused = fuse_unk ? ' fused' : '';
		const normalizer = forms(prepend, underline);
		put(`no bytes, unk${fused}`, { normalizer, model: { byte_fallback: false, fuse_unk } });
		put(`some bytes, unk${fused}`, { normalizer, model: { fuse_unk } }, { drop: [hex(0xe4), hex(0x80), hex(0x0a), hex(0xcc)] });
		put(`some bytes, no unk${fused}`, { normalizer, model: { fuse_unk, unk_token: null } }, { drop: [hex(0xe4), hex(0x80), hex(0x0a), hex(0xcc)] });
		put(`no bytes, no unk${fused}`, { normalizer, model: { fuse_unk, unk_token: null, byte_fallback: false } });
	}
	put('merges ignored', { normalizer: underline, pre_tokenizer: literal(' ', 'MergedWithPrevious'), model: { ignore_merges: true } });
	put('merges as lines', { normalizer: forms(prepend, underline) }, { legacy: true });
	const drop = Object.keys(bases[base].vocab).filter((t) => /[h日]/.test(t));
	put('merges of letters that are missing', { normalizer: forms(prepend, underline) }, { drop });
}

// Added tokens. The ids go on from the vocabulary, unless it has the token.
const tokens = (base, list, more = {}) => {
	const vocab = { ...bases[base].vocab, ...more.vocab };
	let next = Object.keys(vocab).length;
	return list.map((t) => ({ id: vocab[t.content] ?? next++, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true, ...t }));
};
const flags = ['single_word', 'lstrip', 'rstrip', 'normalized'];
const sets = {
	'all flags': Array.from({ length: 16 }, (_, i) => ({ content: '<' + flags.map((f, bit) => ((i >> bit) & 1 ? f[0] : '')).join('') + '>', ...Object.fromEntries(flags.map((f, bit) => [f, !!((i >> bit) & 1)])) })),
	'words': ['single_word', 'lstrip', 'rstrip', 'special'].map((flag, i) => ({ content: ['cat', 'dog', '日本', 'e\u0301'][i], [flag]: true })).concat([{ content: 'on', single_word: true, lstrip: true, rstrip: true }, { content: 'ton', single_word: true }]),
	'words normalized': ['single_word', 'lstrip', 'rstrip', 'special'].map((flag, i) => ({ content: ['cat', 'Dog', 'a b', 'é'][i], [flag]: true, normalized: true, special: false })),
	'overlapping': ['<a', '<a>', '<a><b>', 'a>', '<<a>>', 'ab', 'abc', 'bcd', 'cd', 'cde', '<|x|>', '|>', '<|', '<|x', '|x|>y'].map((content, i) => ({ content, normalized: i % 4 === 3 })),
	'overlapping, some alone': ['<a', '<a>', '<a><b>', 'a', 'ab', 'abc', 'bcd', 'cd', 'b'].map((content, i) => ({ content, single_word: i % 2 === 1 || content === 'abc' })),
	'with spaces': [' x', 'x ', '  ', '\n', ' \n', '   ', 'y z', '\t', ' <s>'].map((content, i) => ({ content, lstrip: i === 1 })),
	'with spaces normalized': [' x', 'x ', '  ', '▁▁▁', 'y z', '▁q'].map((content) => ({ content, normalized: true })),
	'of the vocabulary': ['a', 'e', '1', '!', '<0x0A>', '<s>', 'new'].map((content, i) => ({ content, normalized: i === 2 })),
	'a run of spaces and one that takes it': [{ content: '  ' }, { content: '<r>', rstrip: true }, { content: ' <l>', lstrip: true }],
};
const around = ['a', ' a ', ' ', '  ', '\n', '\t ', ' \u00a0\u3000', '_', '-', '日', '\u0301', '1', '😀', '!'];
for (const [name, list] of Object.entries(sets)) {
	const own = list.map((t) => t.content);
	groups[name] = [
		...own, ...own.flatMap((t, i) => around.map((a, j) => a + t + around[(i + j) % around.length])),
		...own.map((t, i) => t + own[(i + 1) % own.length]), ...own.map((t, i) => t + ' ' + own[(i + 3) % own.length] + '  '), ...some(60, 3 + own.length, own),
	];
	const put = (pipeline, base, file, more = {}) => add(`added ${name}: ${pipeline}`, base, { ...file, added_tokens: tokens(base, list, more) }, { groups: [name], ...more });
	put('gpt2', 'bytes', { pre_tokenizer: { ...gpt2, add_prefix_space: true } });
	put('NFC', 'bytes', { pre_tokenizer: llama3, normalizer: { type: 'NFC' } });
	put('llama 2', 'words', { normalizer: forms(prepend, underline) });
	put('gemma', 'phrases', { normalizer: underline });
	put('Metaspace first', 'words', { pre_tokenizer: metaspace('first', false) });
	put('Metaspace always', 'phrases', { pre_tokenizer: metaspace('always', true) });
	put('lowercase', 'bytes', { pre_tokenizer: gpt2, normalizer: { type: 'Lowercase' } });
}
for (const [name, id] of [['as another', 300], ['far away', 4000]]) bytes(`added id ${name}`, gpt2, { added_tokens: [{ ...tokens('bytes', [{ content: '<|x|>' }])[0], id }] }, { groups: ['overlapping'] });

// A vocabulary with gaps: a new token's id, which is the number of tokens, may be
// one that the vocabulary has, and even another added token's, whose place it takes.
const last = Object.keys(bases.bytes.vocab).at(-1);
groups.gaps = ['<new>', last, `a ${last}<new>${last} b`, `<new>${last}<other>`, `${last}${last}`, 'x<other>y'];
for (const [name, contents] of [['in front', ['<new>', '<other>']], ['of the token before', [last, '<new>', '<other>']], ['of the token behind', ['<new>', last, '<other>']]]) {
	let next = bases.bytes.vocab[last];
	const list = contents.map((content) => ({ ...tokens('bytes', [{ content }])[0], id: bases.bytes.vocab[content] ?? next++ }));
	bytes(`the id ${name}`, gpt2, { added_tokens: list }, { groups: ['gaps'], drop: ['Ā'] });
}

// Post-processors.
const piece = (id) => ({ SpecialToken: { id, type_id: 0 } });
const textPart = { Sequence: { id: 'A', type_id: 0 } };
const specialTokens = (o) => Object.fromEntries(Object.entries(o).map(([id, ids]) => [id, { id, ids, tokens: ids.map(() => id) }]));
const template = (before, after, names) => ({ type: 'TemplateProcessing', single: [...before.map(piece), textPart, ...after.map(piece)], pair: [textPart, { Sequence: { id: 'B', type_id: 1 } }], special_tokens: specialTokens(names) });
const processors = (...list) => ({ type: 'Sequence', processors: list });
const trimmed = { type: 'ByteLevel', add_prefix_space: true, trim_offsets: false, use_regex: true };
const roberta = { type: 'RobertaProcessing', sep: ['</s>', 2], cls: ['<s>', 0], trim_offsets: true, add_prefix_space: false };
groups.short = groups.general.slice(0, 30);
for (const [name, post_processor] of Object.entries({
	'ByteLevel': trimmed,
	'template': template(['x'], [], { x: [7] }),
	'template of several': template(['x', 'y'], ['x', 'z'], { x: [7], y: [8, 9], z: [10] }),
	'template of nothing': template([], [], {}),
	'template with stray fields': { ...template(['x'], ['y'], { x: [7], y: [8] }), add_prefix_space: true, trim_offsets: false, use_regex: true },
	'sequence': processors(trimmed, template(['x'], [], { x: [7] })),
	'empty sequence': processors(),
	'RobertaProcessing': roberta,
	'RobertaProcessing in a sequence': processors(trimmed, roberta),
	'BertProcessing': { type: 'BertProcessing', sep: ['</s>', 2], cls: ['<s>', 0] },
})) bytes(`post-processor ${name}`, gpt2, { post_processor }, { groups: ['short'] });

// ---- recording

function build(c) {
	const dropped = new Set(c.drop ?? []);
	const vocab = Object.fromEntries(Object.entries({ ...bases[c.base].vocab, ...c.vocab }).filter(([token]) => !dropped.has(token)));
	const kept = (m) => m[0] in vocab && m[1] in vocab && m.join('') in vocab;
	const merges = bases[c.base].merges.filter(kept);
	return JSON.stringify({ ...c.file, model: { ...c.file.model, vocab, merges: c.legacy ? ['#version: 0.2', ...merges.map((m) => m.join(' '))] : merges } });
}

// The ids around those of a text, which are the same for every text.
function edges(ids, special) {
	for (let before = 0; before + ids.length <= special.length; before++) {
		if (ids.every((id, i) => special[before + i] === id)) return [special.slice(0, before), special.slice(before + ids.length)];
	}
	throw new Error('the ids of the text are not among those with special tokens');
}

async function record() {
	const texts = new Map(); // text -> ids as text -> cases
	for (const [number, c] of cases.entries()) {
		const tokenizer = Tokenizer.fromString(build(c));
		const ids = async (text, addSpecialTokens) => (await tokenizer.encode(text, null, { addSpecialTokens })).getIds();
		c.around = edges(await ids('hello', false), await ids('hello', true));
		const of = [...new Set(c.groups.flatMap((g) => groups[g]))].map((s) => s.toWellFormed());
		delete c.groups;
		for (const text of of) {
			const plain = await ids(text, false);
			const whole = JSON.stringify([...c.around[0], ...plain, ...c.around[1]]);
			if (whole !== JSON.stringify(await ids(text, true))) throw new Error(`${c.name}: ${JSON.stringify(text)}: other ids with special tokens`);
			if (!texts.has(text)) texts.set(text, new Map());
			const results = texts.get(text);
			const key = JSON.stringify(plain);
			results.set(key, [...(results.get(key) ?? []), number]);
		}
	}
	const rows = [...texts].map(([text, results]) => ({ text, results: [...results].map(([ids, of]) => ({ ids: JSON.parse(ids), cases: of })) }));
	const total = rows.reduce((n, row) => n + row.results.reduce((m, r) => m + r.cases.length, 0), 0);
	const lines = (list) => '[\n' + list.map((x) => JSON.stringify(x)).join(',\n') + '\n]';
	const json = `{"bases": ${JSON.stringify(bases)},\n"cases": ${lines(cases)},\n"rows": ${lines(rows)}}\n`;
	const packed = zlib.gzipSync(json, { level: 9 });
	fs.writeFileSync(path.join(__dirname, 'families.json.gz'), packed);
	console.log(`${cases.length} cases, ${rows.length} texts, ${total} rows, ${json.length} characters, ${packed.length} bytes`);
}

record();
