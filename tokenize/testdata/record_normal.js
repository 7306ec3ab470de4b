// Fills in normal.json: what the official tokenizers library's normalizers give.
// Run by hand:
//
//	npm install tokenizers@0.23.2   # HuggingFace's own binding of the Rust library
//	node record_normal.js
//
// digests has for each form and each 65,536 code points the SHA-256 of every one
// of them normalized alone, with a line end after each. classes has the combining
// classes other than 0 as [first, last, class], from where NFD puts a code point
// among marks of each class. cases has texts and what they become.
const crypto = require('crypto');
const fs = require('fs');
const path = require('path');
const { Tokenizer } = require('tokenizers');

const tiny = fs.readFileSync(path.join(__dirname, 'tiny.json'), 'utf8');

function normalizer(section) {
	const file = JSON.parse(tiny);
	file.normalizer = section;
	return Tokenizer.fromString(JSON.stringify(file)).getNormalizer();
}

// each calls f with every code point of a plane but the surrogates.
function each(plane, f) {
	for (let c = plane << 16; c < (plane + 1) << 16; c++) {
		if (c < 0xd800 || c > 0xdfff) f(c, String.fromCodePoint(c));
	}
}

function digest(form, plane) {
	const n = normalizer({ type: form });
	const hash = crypto.createHash('sha256');
	each(plane, (_, s) => hash.update(n.normalizeString(s) + '\n'));
	return hash.digest('hex').slice(0, 32);
}

// A mark of each class.
const marks = [
	[1, 0x334], [7, 0x93c], [8, 0x3099], [9, 0x94d], [10, 0x5b0], [11, 0x5b1], [12, 0x5b2], [13, 0x5b3],
	[14, 0x5b4], [15, 0x5b5], [16, 0x5b6], [17, 0x5b7], [18, 0x5b8], [19, 0x5b9], [20, 0x5bb], [21, 0x5bc],
	[22, 0x5bd], [23, 0x5bf], [24, 0x5c1], [25, 0x5c2], [26, 0xfb1e], [27, 0x64b], [28, 0x64c], [29, 0x64d],
	[30, 0x618], [31, 0x619], [32, 0x61a], [33, 0x651], [34, 0x652], [35, 0x670], [36, 0x711], [84, 0xc55],
	[91, 0xc56], [103, 0xe38], [107, 0xe48], [118, 0xeb8], [122, 0xec8], [129, 0xf71], [130, 0xf72],
	[132, 0xf74], [202, 0x321], [214, 0x1dce], [216, 0x31b], [218, 0x302a], [220, 0x316], [222, 0x59a],
	[224, 0x302e], [226, 0x1d16d], [228, 0x5ae], [230, 0x300], [232, 0x315], [233, 0x35c], [234, 0x35d],
	[240, 0x345],
];

function classes() {
	const nfd = normalizer({ type: 'NFD' });
	const all = String.fromCodePoint(...marks.map(([, c]) => c));
	const ranges = [];
	for (let plane = 0; plane < 17; plane++) {
		each(plane, (c, s) => {
			if (nfd.normalizeString(s) !== s) return; // others than itself have the class
			// Between marks of its own class: after that of the one text, before that of the other.
			const after = [...nfd.normalizeString(all + s)].lastIndexOf(s);
			const before = [...nfd.normalizeString(s + all)].indexOf(s);
			if (before === 0 && after === marks.length) return;
			const own = marks.findIndex(([, m]) => m === c);
			if (own < 0 && after !== before + 1) throw new Error('class of ' + c.toString(16));
			const k = marks[before][0];
			const last = ranges.at(-1);
			if (last && last[1] === c - 1 && last[2] === k) last[1] = c;
			else ranges.push([c, c, k]);
		});
	}
	return ranges;
}

function record() {
	const name = path.join(__dirname, 'normal.json');
	const file = JSON.parse(fs.readFileSync(name, 'utf8'));
	for (const form of Object.keys(file.digests)) {
		file.digests[form] = Array.from({ length: 17 }, (_, plane) => digest(form, plane));
	}
	file.classes = classes();
	for (const c of file.cases) {
		const n = normalizer(c.normalizer);
		c.rows = c.rows.map(([text]) => [text, n.normalizeString(text)]);
	}
	const lines = (list) => '[\n' + list.map((v) => JSON.stringify(v)).join(',\n') + '\n]';
	fs.writeFileSync(name, '{"digests":' + JSON.stringify(file.digests).replaceAll('"],"', '"],\n"') +
		',\n"classes":' + JSON.stringify(file.classes) + ',\n"cases":' + lines(file.cases) + '}\n');
}

record();
