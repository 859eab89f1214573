// Notes are Markdown, drawn as nodes and never as HTML: what looks like a tag stays text, and a link goes to http(s) or nowhere.
import type { ComponentChild, ComponentChildren } from "preact";

const INLINE = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*|\[([^\]]+)\]\(([^)\s]+)\)|(https?:\/\/[^\s<>")]+)/g;

function inline(text: string): ComponentChildren {
  const found: ComponentChild[] = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    const [whole, code, bold, slanted, label, target, bare] = match;
    found.push(text.slice(at, match.index));
    at = match.index + whole.length;
    const link = target ?? bare;
    if (code) found.push(<code>{code}</code>);
    else if (bold) found.push(<strong>{inline(bold)}</strong>);
    else if (slanted) found.push(<em>{inline(slanted)}</em>);
    else if (link && /^(https?:\/\/|\/(?!\/))/.test(link))
      found.push(
        <a href={link} rel="noopener noreferrer" target="_blank">
          {label ?? link}
        </a>,
      );
    else found.push(whole);
  }
  found.push(text.slice(at));
  return found;
}

function list(lines: string[], ordered: boolean): ComponentChild {
  const items = lines.map((line, i) => <li key={i}>{inline(line.replace(/^\s*(?:[-*+]|\d+[.)])\s+/, ""))}</li>);
  return ordered ? <ol>{items}</ol> : <ul>{items}</ul>;
}

function block(text: string): ComponentChild {
  const lines = text.split("\n");
  const heading = /^(#{1,6})\s+(.*)$/.exec(lines[0]!);
  if (heading) {
    const Tag = `h${Math.min(6, heading[1]!.length + 2)}` as "h3"; // the page's own headings are above them
    const rest = lines.slice(1).join("\n");
    return (
      <>
        <Tag>{inline(heading[2]!)}</Tag>
        {rest.trim() && block(rest)}
      </>
    );
  }
  if (lines.every((line) => /^\s*[-*+]\s/.test(line))) return list(lines, false);
  if (lines.every((line) => /^\s*\d+[.)]\s/.test(line))) return list(lines, true);
  if (lines.every((line) => line.startsWith(">"))) return <blockquote>{inline(lines.map((line) => line.replace(/^>\s?/, "")).join("\n"))}</blockquote>;
  return <p>{inline(text)}</p>;
}

/** Paragraphs, headings, lists, quotes, code, emphasis and links: what a note needs. */
export function Markdown({ text }: { text: string }) {
  const parts = text.replaceAll("\r\n", "\n").split(/^```.*$/m); // every second one is code
  return (
    <div class="note">
      {parts.map((part, i) =>
        i % 2 ? (
          <pre key={i}>{part.replace(/^\n|\n$/g, "")}</pre>
        ) : (
          part.split(/\n\s*\n/).filter((each) => each.trim()).map((each, k) => <div key={`${i} ${k}`}>{block(each.replace(/^\n+|\n+$/g, ""))}</div>)
        ),
      )}
    </div>
  );
}
